/** The clock of a scenario: time passes only where the scenario waits for it, and then at once. */

interface Timer { at: number; every: number | undefined; run: () => void }

const immediate = setImmediate;

export class ScenarioClock {
  #now = 1_790_000_000_000;
  #timers = new Map<number, Timer>();
  #last = 0;
  #digests = 0;
  #restore: () => void;

  constructor() {
    const { setTimeout, setInterval, clearTimeout, clearInterval, Date: { now } } = globalThis;
    const { subtle } = crypto;
    const digest = subtle.digest.bind(subtle);
    this.#restore = () => {
      Object.assign(globalThis, { setTimeout, setInterval, clearTimeout, clearInterval });
      Date.now = now;
      subtle.digest = digest;
    };
    const plan = (run: () => void, ms: number, every: number | undefined): number => {
      this.#timers.set(++this.#last, { at: this.#now + Math.max(1, Math.trunc(ms)), every, run });
      return this.#last;
    };
    const cancel = (id: number | undefined): void => { if (id !== undefined) this.#timers.delete(id); };
    Object.assign(globalThis, {
      setTimeout: (run: () => void, ms = 0) => plan(run, ms, undefined), clearTimeout: cancel,
      setInterval: (run: () => void, ms = 0) => plan(run, ms, ms), clearInterval: cancel,
    });
    Date.now = () => this.#now;
    // A digest is made by another thread: the scenario waits for it as for everything that takes no time.
    subtle.digest = (async (...args: Parameters<typeof digest>) => {
      this.#digests++;
      try { return await digest(...args); } finally { this.#digests--; }
    }) as typeof digest;
  }

  get now(): number { return this.#now; }

  /** Resolves when all that can happen without time has happened. */
  async settle(): Promise<void> {
    for (let quiet = 0; quiet < 3; quiet++) {
      await new Promise((resolve) => immediate(resolve));
      if (this.#digests > 0) quiet = 0;
    }
  }

  /** Lets time pass up to the next timer, if that is not after `until`; false if it is. */
  async #step(until: number): Promise<boolean> {
    let next: [number, Timer] | undefined;
    for (const entry of this.#timers) if (!next || entry[1].at < next[1].at) next = entry;
    if (!next || next[1].at > until) return false;
    const [id, timer] = next;
    this.#now = Math.max(this.#now, timer.at);
    if (timer.every === undefined) this.#timers.delete(id);
    else timer.at += Math.max(1, timer.every);
    timer.run();
    await this.settle();
    return true;
  }

  /** Waits until `ready` gives something; undefined if it does not for so many ms. */
  async wait<T>(ready: () => T | undefined, ms: number): Promise<T | undefined> {
    const until = this.#now + ms;
    await this.settle();
    for (;;) {
      const got = ready();
      if (got !== undefined) return got;
      if (!await this.#step(until)) {
        this.#now = until;
        return undefined;
      }
    }
  }

  async sleep(ms: number): Promise<void> { await this.wait(() => undefined, ms); }

  end(): void { this.#restore(); }
}

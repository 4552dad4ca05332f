import type { Delivery } from "./delivery.ts";
import type { Link } from "./link.ts";
import type { Receiver, Subscription } from "./subscription.ts";

export type AnyHandler = (d: Delivery) => unknown;

function isThenable(x: unknown): x is PromiseLike<unknown> {
  return typeof (x as PromiseLike<unknown> | undefined)?.then === "function";
}

/** Calls a handler for each delivery: its result is the verdict. */
export class Consumer implements Receiver {
  #sub: Subscription;
  #link: Link;
  #handler: AnyHandler;
  #concurrency: number;
  #running = 0;
  #ended = false;
  #idle: (() => void)[] = [];

  constructor(sub: Subscription, link: Link, handler: AnyHandler) {
    this.#sub = sub;
    this.#link = link;
    this.#handler = handler;
    this.#concurrency = sub.options.concurrency || 1; // also for 0, as everywhere
  }

  ready(): void {
    while (!this.#ended && this.#running < this.#concurrency) {
      const d = this.#sub.next();
      if (!d) return;
      this.#running++;
      try {
        const result = this.#handler(d);
        if (isThenable(result)) {
          result.then(() => { this.#passed(d); this.ready(); }, (why: unknown) => { this.#failed(d, why); this.ready(); });
        } else this.#passed(d); // without a promise, of which there would be several for each event
      } catch (why) {
        this.#failed(d, why);
      }
    }
  }

  #passed(d: Delivery): void {
    if (d.phase === "begun") this.#sub.quietly(d);
    this.#over();
  }

  #failed(d: Delivery, why: unknown): void {
    if (d.lease === undefined) this.#link.warn(`a handler of ${this.#sub.key} failed; the event ${d.id} does not come again`, why);
    else if (d.phase === "begun") void d.nack(why);
    this.#over();
  }

  #over(): void {
    if (--this.#running === 0) for (const resolve of this.#idle.splice(0)) resolve();
  }

  ended(): void { this.#ended = true; }

  async finished(): Promise<void> {
    if (this.#running > 0) await new Promise<void>((resolve) => { this.#idle.push(resolve); });
  }
}

/** Hands deliveries to a loop, one by one. */
export class Loop implements Receiver {
  #sub: Subscription;
  #waiting: { resolve(d: Delivery | undefined): void; reject(why: unknown): void }[] = [];
  #ended = false;
  #error: Error | undefined;

  constructor(sub: Subscription) { this.#sub = sub; }

  get over(): boolean { return this.#ended; }

  next(): Promise<Delivery | undefined> {
    if (!this.#ended) {
      const d = this.#sub.next();
      if (d) return Promise.resolve(d);
      return new Promise((resolve, reject) => { this.#waiting.push({ resolve, reject }); });
    }
    const error = this.#error;
    this.#error = undefined; // it is thrown once
    return error ? Promise.reject(error) : Promise.resolve(undefined);
  }

  ready(): void {
    while (this.#waiting.length > 0) {
      const d = this.#sub.next();
      if (!d) return;
      this.#waiting.shift()?.resolve(d);
    }
  }

  ended(error: Error | undefined): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    for (const w of this.#waiting.splice(0)) {
      if (this.#error) w.reject(this.#error);
      else w.resolve(undefined);
      this.#error = undefined;
    }
  }

  finished(): Promise<void> { return Promise.resolve(); }
}

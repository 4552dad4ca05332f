import { now } from "./clock.ts";
import { Delivery, type NackOptions, type Settler } from "./delivery.ts";
import { HubError, quiet } from "./errors.ts";
import { snake, type HubFrame, type WireContext, type WireEvent } from "./frame.ts";
import { Kind, type Link, type Request } from "./link.ts";
import { Leases } from "./leases.ts";
import { TailPosition } from "./position.ts";
import { encodeEvents, Sending, type Outgoing } from "./publisher.ts";
import { abortReason, deferred, onAbort } from "./signal.ts";
import type { CursorPosition, Gap, Receipt, StateMark, SubscribeOptions, TailOptions } from "./types.ts";
import { leaseLost, Verdicts } from "./verdicts.ts";

/** What takes the deliveries of a subscription. */
export interface Receiver {
  /** Something waits: take it by `next`. */
  ready(): void;
  /** The subscription takes no more: `error` says why, if that was not asked for. */
  ended(error: Error | undefined): void;
  /** Resolves when what has begun is over. */
  finished(): Promise<void>;
}

/** What subscriptions need of the client that has them. */
export interface Owner {
  link: Link;
  subs: Map<string, Subscription>;
  partings: Map<string, Promise<void>>;
  cursor(topic: string, group: string): Promise<CursorPosition | null>;
}

export function keyOf(topic: string, group: string | undefined): string {
  return group === undefined ? topic : `${topic}::${group}`;
}

function noLease(what: string): HubError {
  return new HubError("bad_request", `${what}: a delivery of a live tail, or with manualAck false, has no lease`);
}

/** How many characters of events without leases wait here before the hub is told to pause. */
const maxHeld = 4 << 20;
const maxGaps = 1024;

/** One membership or live tail, made again on every connection. */
export class Subscription implements Settler {
  readonly topic: string;
  readonly group: string | undefined;
  /** Resolves when the subscription has been closed, rejects when it has ended by itself. */
  readonly closed: Promise<void>;
  #over = deferred<undefined>();
  #owner: Owner;
  #options: SubscribeOptions;
  #receiver!: Receiver;
  #wire: Record<string, unknown>;
  #queue: (Delivery | StateMark)[] = [];
  #head = 0;
  #held = 0;
  #leases: Leases | undefined;
  #position: TailPosition | undefined;
  #verdicts: Verdicts | undefined;
  #gaps = new Set<string>();
  #joined = false;
  /** Takes the first SUBSCRIBE back, if it has no answer. */
  #giveUp: () => void = () => undefined;
  #state: "open" | "draining" | "closed" = "open";
  #paused = false;
  #full = false;
  #off: () => void = () => undefined;

  /** @internal */
  constructor(owner: Owner, topic: string, options: SubscribeOptions) {
    this.#owner = owner;
    this.#options = options;
    this.topic = topic;
    this.group = options.group;
    this.closed = quiet(this.#over.promise);
    const { group: _group, concurrency: _c, signal: _s, onGap: _g, ...rest } = options;
    const { onEnded: _e, onState: _t, ...opts } = rest as Record<string, unknown>;
    if (opts.from === "afterId") opts.from = "after_id";
    this.#wire = { ...snake(opts), batch: true };
    if (options.group === undefined) this.#position = new TailPosition();
    else {
      this.#verdicts = new Verdicts(owner.link, topic, options.group);
      if (options.manualAck !== false) this.#leases = new Leases(this.#verdicts, options.ackTimeoutMs ?? 30_000);
    }
  }

  get key(): string { return keyOf(this.topic, this.group); }
  get #link(): Link { return this.#owner.link; }
  get options(): SubscribeOptions { return this.#options; }

  /** @internal Says SUBSCRIBE for the first time. */
  async join(receiver: Receiver): Promise<void> {
    this.#receiver = receiver;
    const { subs, partings } = this.#owner;
    const { signal } = this.#options;
    for (let before = partings.get(this.key); before; before = partings.get(this.key)) await before;
    this.#link.check();
    if (signal?.aborted) throw abortReason(signal);
    if (subs.has(this.key)) throw new HubError("already_subscribed", `there is a subscription ${this.key} already: close it, or connect a second client`);
    subs.set(this.key, this);
    try {
      await new Promise<void>((resolve, reject) => {
        this.#off = onAbort(signal, () => { reject(abortReason(signal)); void this.#finish(undefined); });
        const r: Request = this.#link.ask(Kind.Subscribe, this.#frame(), (f, error) => {
          if (error) { reject(error); return; }
          if (f) this.#begun(f);
          resolve();
        });
        // Sent again over another connection, it would make a member that nobody is.
        this.#giveUp = () => { if (this.#link.forget(r)) resolve(); };
      });
    } catch (why) {
      await this.#finish(undefined);
      throw why;
    }
  }

  #frame(more?: Record<string, unknown>): object {
    return { op: "SUBSCRIBE", topic: this.topic, group: this.group, opts: { ...this.#wire, ...more } };
  }

  #begun(f: HubFrame): void {
    this.#joined = true;
    if (this.#position) this.#position.known = f.known ?? this.#position.known;
    for (const gap of f.gaps ?? []) this.#tellGap(gap);
    for (const ended of f.ended ?? []) {
      const { onEnded } = this.#options as { onEnded?(e: typeof ended): void };
      if (onEnded) this.#call("onEnded", () => { onEnded(ended); });
      else this.#link.warn(`the group ${this.group ?? ""} in ${ended.topic} had ended because nobody used it, and begins anew`);
    }
  }

  /** @internal A new connection: take the place back. */
  rejoin(): void {
    if (!this.#joined || this.#state === "closed") return;
    this.#link.ask(Kind.Resubscribe, this.#frame(this.#position?.resume()), (f, error) => {
      if (f && !error) this.#begun(f);
      else if (error?.code === "unknown_id" && this.#position?.isEmpty) this.#restart();
      else if (error) this.end(error);
    });
    if (!this.#paused && !this.#full) return;
    // It goes out right after the SUBSCRIBE, so that few events come in between.
    this.#link.ask(Kind.Resubscribe, { op: "PAUSE", topic: this.topic, group: this.group }, (_, error) => {
      if (error && error.code !== "not_subscribed") this.end(error);
    });
  }

  /** The place where a tail was to begin is not in the log any more: which events are after it nobody knows. */
  #restart(): void {
    this.#link.warn(`the live tail ${this.key} begins at the first event: the log does not have its place any more`);
    this.#wire = { ...this.#wire, from: "earliest" };
    for (const name of ["after_id", "ts", "offset"]) this.#wire[name] = undefined;
    this.rejoin();
  }

  /** @internal The connection is lost: what nobody has begun comes again, if there are leases. */
  lost(): void {
    if (!this.#leases) return;
    this.#leases.forget(this.#queue.slice(this.#head) as Delivery[]);
    this.#queue = [];
    this.#head = this.#held = 0;
  }

  /** @internal */
  deliver(f: HubFrame, chars: number): void {
    // While it is drained, what comes is held, and goes back at the end: without that its attempts would be used up.
    if (this.#state === "closed" || (this.#state === "draining" && !this.#leases)) return;
    const at = now();
    if (f.events) for (const { event, ctx } of f.events) this.#take(event, ctx ?? {}, at, chars / f.events.length);
    else if (f.event) this.#take(f.event, f.ctx ?? {}, at, chars);
    else if (f.count !== undefined) {
      this.#position?.complete(this.topic, f);
      this.#queue.push({ topic: this.topic, offset: f.offset ?? 0, count: f.count });
    } else if (f.horizon !== undefined) this.#queue.push({ topic: this.topic, horizon: f.horizon });
    if (!this.#leases && this.#held > maxHeld && !this.#full) {
      this.#full = true;
      this.#sayPaused();
    }
    this.#receiver.ready();
  }

  #take(event: WireEvent, ctx: WireContext, now: number, chars: number): void {
    this.#position?.advance(event, ctx);
    const d = new Delivery(this, event, ctx, now, chars);
    if (this.#leases && !this.#leases.take(d, ctx.epoch)) return;
    this.#held += chars;
    this.#queue.push(d);
  }

  /** @internal The next delivery that is still ours, begun. */
  next(): Delivery | undefined {
    while (this.#head < this.#queue.length) {
      const q = this.#queue[this.#head++];
      if (this.#head > 1024 || this.#head === this.#queue.length) {
        this.#queue.splice(0, this.#head);
        this.#head = 0;
      }
      if (!q) continue;
      if (!(q instanceof Delivery)) {
        this.#tellState(q);
        continue;
      }
      this.#held -= q.chars;
      if (this.#full && this.#held < maxHeld / 2) {
        this.#full = false;
        this.#sayPaused();
      }
      if (q.phase === "over") continue; // the group was moved
      q.phase = "begun";
      if (q.gap) this.#tellGap(q.gap);
      return q;
    }
    return undefined;
  }

  #tellGap(gap: Gap): void {
    const what = `${gap.topic} ${gap.after} ${gap.first} ${gap.compacted ?? 0} ${gap.tombstones ?? 0}`;
    if (this.#gaps.has(what)) return;
    if (this.#gaps.size >= maxGaps) this.#gaps.clear();
    this.#gaps.add(what);
    const { onGap } = this.#options;
    if (onGap) this.#call("onGap", () => { onGap(gap); });
  }

  #tellState(mark: StateMark): void {
    const { onState } = this.#options as TailOptions;
    if (onState) this.#call("onState", () => { onState(mark); });
  }

  #call(name: string, run: () => void): void {
    try {
      run();
    } catch (why) {
      this.#link.warn(`${name} of ${this.key} failed`, why);
    }
  }

  ack(d: Delivery): Promise<void> {
    return this.#settle(d, "ack", (lease, verdicts) => verdicts.ack(lease));
  }

  /** @internal Acks what a handler has done, and tells nobody what became of that. */
  quietly(d: Delivery): void {
    const lease = this.#leases?.release(d);
    if (lease !== undefined) this.#verdicts?.quietly(lease);
  }

  nack(d: Delivery, why: unknown, verdict: NackOptions): Promise<void> {
    return this.#settle(d, "nack", (lease, verdicts) => verdicts.nack(lease, why, verdict));
  }

  #settle(d: Delivery, what: string, send: (lease: string, verdicts: Verdicts) => Promise<void>): Promise<void> {
    if (!this.#leases || !this.#verdicts) {
      return quiet(Promise.reject(noLease(what)));
    }
    const lease = this.#leases.release(d);
    if (lease === undefined) return quiet(Promise.reject(leaseLost(`${what} of ${d.id}`)));
    return send(lease, this.#verdicts);
  }

  async extend(d: Delivery, ms: number | undefined): Promise<void> {
    if (!this.#leases || !this.#verdicts) throw noLease("extend");
    const lease = this.#leases.prolong(d, ms);
    if (lease === undefined) throw leaseLost(`extending ${d.id}`);
    await this.#verdicts.extend(lease, ms);
  }

  async ackAndPublish(d: Delivery, events: readonly Outgoing[]): Promise<Receipt[]> {
    const { json, ids } = encodeEvents(events);
    if (!this.#leases || this.group === undefined) throw noLease("ackAndPublish");
    const lease = this.#leases.hand(d);
    if (lease === undefined) throw leaseLost(`ackAndPublish of ${d.id}`);
    try {
      const head = JSON.stringify({ op: "ACK", topic: d.topic, group: this.group, lease }).slice(0, -1);
      const receipts = await new Promise<Receipt[]>((resolve, reject) => {
        const s = new Sending(this.#link, Kind.AckPublish, `${head},"publish":[${json}]`, ids, false, undefined, resolve, reject);
        s.retries = () => this.#state !== "closed";
        s.begin();
      });
      this.#leases.finish(d);
      return receipts;
    } catch (why) {
      if (why instanceof HubError && why.code === "lease_lost") this.#leases.finish(d);
      else if (d.phase === "handed") d.phase = "begun"; // a verdict may follow
      throw why;
    }
  }

  cursor(topic: string): Promise<CursorPosition | null> {
    return this.group === undefined
      ? Promise.reject(noLease("cursor"))
      : this.#owner.cursor(topic, this.group);
  }

  /** Stops the deliveries, also over lost connections; leases stay. */
  pause(): Promise<void> { this.#paused = true; return this.#sayPaused(); }

  /** Restarts the deliveries. */
  resume(): Promise<void> { this.#paused = false; return this.#sayPaused(); }

  #sayPaused(): Promise<void> {
    if (!this.#joined || !this.#link.connected || this.#state === "closed") return Promise.resolve(); // said with the next SUBSCRIBE
    return quiet(this.#say(this.#paused || this.#full ? "PAUSE" : "RESUME", Kind.Pause));
  }

  #say(op: string, kind: Kind): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#link.ask(kind, { op, topic: this.topic, group: this.group }, (_, error) => {
        if (error && error.code !== "not_subscribed") reject(error); else resolve();
      });
    });
  }

  /** Begins nothing more, lets what has begun finish with its verdict, and leaves. */
  async drain(options: { signal?: AbortSignal } = {}): Promise<void> {
    if (this.#state === "open") {
      this.#state = "draining";
      // What waits stays ours, for a lease that runs out is an attempt; the end gives it to other members without that.
      if (!this.#leases) this.#queue.length = this.#head = 0;
      this.#receiver.ended(undefined);
    }
    const { signal } = options;
    const gaveUp = deferred<never>();
    const off = onAbort(signal, () => { gaveUp.reject(abortReason(signal)); });
    try {
      const rest = (async () => {
        await this.#receiver.finished();
        await this.#verdicts?.settled();
      })();
      await Promise.race([rest, this.closed, quiet(gaveUp.promise)]);
    } finally {
      off();
      await this.#finish(undefined);
    }
  }

  /** Leaves at once: events without a verdict go to other members, and their attempts do not count. */
  close(): Promise<void> { return this.#finish(undefined); }

  /** @internal Ends by itself: the hub does not take the place back, or the client is closed. */
  end(why: HubError): void {
    if (this.#state === "closed") return;
    const error = new HubError(why.code, `the subscription ${this.key} has ended: ${why.message}`, { ...why, topic: this.topic, group: this.group, cause: why });
    void this.#finish(error);
  }

  async #finish(error: HubError | undefined): Promise<void> {
    if (this.#state === "closed") return;
    const was = this.#state;
    this.#state = "closed";
    this.#off();
    this.#giveUp();
    this.#verdicts?.flush(); // what was said before goes first
    const { subs, partings } = this.#owner;
    if (subs.get(this.key) === this) {
      subs.delete(this.key);
      if (!error && this.#link.connected) {
        const parting = this.#say("UNSUBSCRIBE", Kind.Leave).catch((why: HubError) => { if (why.code !== "closed") this.#link.warn(`leaving ${this.key}`, why); });
        partings.set(this.key, parting.finally(() => { partings.delete(this.key); }));
      }
    }
    this.#leases?.close(error ?? new HubError("closed", `the subscription ${this.key} was closed`));
    this.#queue = [];
    this.#head = 0;
    if (was === "open") this.#receiver.ended(error);
    if (error) this.#over.reject(error); else this.#over.resolve(undefined);
    await partings.get(this.key);
  }
}

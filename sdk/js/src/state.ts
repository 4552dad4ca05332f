/**
 * The state by key of a topic as a map that is kept up to date.
 * @module
 */
import type { Delivery, DeliveryOf } from "./delivery.ts";
import { HubError } from "./errors.ts";
import type { Hub } from "./hub.ts";
import { deferred, orAbort } from "./signal.ts";
import type { Subscription } from "./subscription.ts";
import type { PayloadOf, TopicMap, TopicName, TopicsOf } from "./topics.ts";
import type { StateMark } from "./types.ts";

/**
 * A key has another value. Where it changed several times before the callback could be told, because the events came
 * together or the callback is slow and returned a promise, it is told of the newest value alone.
 */
export interface StateChange<T> {
  key: string;
  /** The value before; there was none where `added`. */
  old: T | undefined;
  /** The value; there is none where `removed`. */
  new: T | undefined;
  added: boolean;
  removed: boolean;
  /** That of the event with `new`; where `removed`, one up to which the map was then. */
  offset: number;
}

export interface StateMapOptions<T> {
  /** Only keys that the pattern matches; one that ends in `*` is the beginning of what is wanted. */
  keys?: string;
  /** Called for each change of a key, one after the other, also for each key that is there in the beginning. */
  onChange?(change: StateChange<T>): unknown;
  /** Closes the map. */
  signal?: AbortSignal;
}

interface Entry<T> { value: T; offset: number; id: string; round: number }
interface Waiter { offset: number; resolve(): void; reject(why: unknown): void }

/**
 * Of each key of a topic the newest value, without the keys that have ended by the payload null; {@link stateMap} makes
 * one. Over lost connections and restarts of the hub it goes on where it was, or is given the state anew: no key
 * is missed, none stays that the topic has no more, and none goes back to an older value, but where the newer one was
 * erased, or lost by a hub that was restored. After its end it stays as it is.
 */
export class StateMap<T> implements Iterable<[string, T]> {
  readonly topic: string;
  /** Resolves when the map has been closed, rejects when it has ended by itself. */
  readonly closed: Promise<void>;
  #entries = new Map<string, Entry<T>>();
  /** Of the state that came last, or is coming: what is of it has the same. */
  #round = 0;
  #offset = 0;
  #loaded = false;
  #sub: Subscription | undefined;
  #over = deferred<undefined>();
  #end: Error | undefined;
  #waiters: Waiter[] = [];
  #onChange: ((change: StateChange<T>) => unknown) | undefined;
  /** What is to be told: the entry before, by key. */
  #owed = new Map<string, Entry<T> | undefined>();
  #telling = false;

  private constructor(topic: string, options: StateMapOptions<T>) {
    this.topic = topic;
    this.#onChange = options.onChange;
    this.closed = this.#over.promise;
    this.closed.catch(() => undefined); // nobody has to wait for it
  }

  /** @internal */
  static async open<M extends TopicMap, K extends TopicName<M>>(hub: Hub<M>, topic: K, options: StateMapOptions<PayloadOf<M, K>>): Promise<StateMap<PayloadOf<M, K>>> {
    const map = new StateMap<PayloadOf<M, K>>(topic, options), { keys, signal } = options;
    const sub = await hub.subscribe(topic, {
      from: "snapshot", batchSize: 1000, onState: (mark) => { map.#mark(mark); }, signal, ...(keys === undefined ? {} : { filter: { key: keys } }),
    }, (d: DeliveryOf<M, TopicsOf<M, K>>) => { map.#take(d as Delivery<PayloadOf<M, K>>); });
    map.#sub = sub;
    sub.closed.then(() => { map.#ended(undefined); }, (why: unknown) => { map.#ended(why as Error); });
    return map;
  }

  get(key: string): T | undefined { return this.#entries.get(key)?.value; }
  has(key: string): boolean { return this.#entries.has(key); }
  /** How many keys have a value. */
  get size(): number { return this.#entries.size; }
  /** The offset in the topic up to which the map has everything; 0 before it is loaded. */
  get offset(): number { return this.#offset; }
  /** Whether it was the state of the topic, once. */
  get loaded(): boolean { return this.#loaded; }

  /** The keys and their values as they are, in no order. */
  *[Symbol.iterator](): IterableIterator<[string, T]> {
    for (const [key, e] of this.#entries) yield [key, e.value];
  }

  /** Waits until the map is the state of the topic, once. Rejects if it ends before. */
  waitLoaded(options: { signal?: AbortSignal } = {}): Promise<void> { return this.waitOffset(0, options); }

  /** Waits until the map has everything up to an offset, such as that of a receipt; with `keys` that of an event it wants. */
  waitOffset(offset: number, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
    if (this.#loaded && this.#offset >= offset) return Promise.resolve();
    if (this.#end) return Promise.reject(this.#end);
    let waiter: Waiter | undefined;
    const promise = new Promise<void>((resolve, reject) => { this.#waiters.push(waiter = { offset, resolve, reject }); });
    return orAbort(promise, signal).finally(() => { this.#waiters = this.#waiters.filter((w) => w !== waiter); });
  }

  /** Ends the map. The values stay, and nothing is told any more. */
  async close(): Promise<void> {
    this.#ended(undefined);
    await this.#sub?.close();
  }

  #ended(why: Error | undefined): void {
    if (this.#end) return;
    this.#end = why ?? new HubError("closed", `the state of ${this.topic} was closed by this program`);
    this.#owed.clear();
    for (const w of this.#waiters.splice(0)) w.reject(this.#end);
    if (why) this.#over.reject(why); else this.#over.resolve(undefined);
  }

  #take(d: Delivery<T>): void {
    if (this.#end) return;
    if (d.stateBegins) this.#round++;
    this.#put(d);
    if (!d.state) this.#reach(d.offset);
  }

  #mark(m: StateMark): void {
    if (this.#end) return;
    if (m.horizon !== undefined) {
      this.#retain((e) => e.offset >= m.horizon);
      return;
    }
    if (m.count === 0) this.#round++;
    this.#retain((e) => e.round === this.#round);
    this.#loaded = true;
    this.#reach(m.offset);
  }

  #reach(offset: number): void {
    this.#offset = offset;
    if (this.#waiters.length > 0 && this.#loaded) for (const w of this.#waiters) if (offset >= w.offset) w.resolve();
  }

  #put(d: Delivery<T>): void {
    if (d.key === undefined || d.key === "") return;
    const before = this.#entries.get(d.key);
    if (before?.offset === d.offset && before.id === d.id) {
      before.round = this.#round; // it came before
      return;
    }
    if (d.payload === null) {
      if (before) this.#remove(d.key, before);
      return;
    }
    this.#entries.set(d.key, { value: d.payload, offset: d.offset, id: d.id, round: this.#round });
    this.#owe(d.key, before);
  }

  #remove(key: string, before: Entry<T>): void {
    this.#entries.delete(key);
    this.#owe(key, before);
  }

  #retain(keep: (e: Entry<T>) => boolean): void {
    for (const [key, e] of this.#entries) if (!keep(e)) this.#remove(key, e);
  }

  #owe(key: string, before: Entry<T> | undefined): void {
    if (!this.#onChange) return;
    if (!this.#owed.has(key)) this.#owed.set(key, before);
    if (!this.#telling) void this.#tell(this.#onChange);
  }

  /** Tells what is owed. It begins after the events that came together are taken. */
  async #tell(onChange: (change: StateChange<T>) => unknown): Promise<void> {
    this.#telling = true;
    await Promise.resolve();
    for (const [key, before] of this.#owed) {
      this.#owed.delete(key);
      const e = this.#entries.get(key);
      if (!before && !e) continue; // it came and went
      try {
        const result = onChange({ key, old: before?.value, new: e?.value, added: !before, removed: !e, offset: e?.offset ?? this.#offset });
        if (typeof (result as PromiseLike<unknown> | undefined)?.then === "function") await result;
      } catch (why) {
        console.warn(`eventhub: onChange of the state of ${this.topic} failed`, why);
      }
    }
    this.#telling = false;
  }
}

/**
 * Gives the state by key of a topic as a map that is loaded, see {@link StateMap.waitLoaded}, and then kept up to date. A client
 * has at most one live tail of a topic, and this is one.
 */
export function stateMap<M extends TopicMap, K extends TopicName<M>>(hub: Hub<M>, topic: K, options: StateMapOptions<PayloadOf<M, K>> = {}): Promise<StateMap<PayloadOf<M, K>>> {
  return StateMap.open(hub, topic, options);
}

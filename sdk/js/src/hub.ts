import { Consumer, Loop, type AnyHandler } from "./consume.ts";
import type { Delivery, DeliveryOf } from "./delivery.ts";
import { HubError } from "./errors.ts";
import type { HubFrame } from "./frame.ts";
import type { HttpApi } from "./http.ts";
import { Kind, Link, type LinkState, type Request, type StateDetail } from "./link.ts";
import { Publisher, type Outgoing } from "./publisher.ts";
import { resultPrefix, resultsOf } from "./results.ts";
import { abortReason, onAbort, orAbort } from "./signal.ts";
import { keyOf, Subscription, type Owner } from "./subscription.ts";
import type { PayloadOf, TopicMap, TopicName, TopicsOf } from "./topics.ts";
import type { ConnectOptions, CursorPosition, GroupOptions, HubInfo, PublishOptions, Receipt, SeekTarget, SubscribeOptions, WaitOptions } from "./types.ts";

/** An event of a batch: its topic decides on the type of its payload. */
export type EventOf<M extends TopicMap> = { [K in TopicName<M>]: { topic: K; payload: PayloadOf<M, K> } & PublishOptions }[TopicName<M>];

/** Called for each delivery: what it returns acks, what it throws nacks. */
export type Handler<M extends TopicMap, P extends string> = (d: DeliveryOf<M, TopicsOf<M, P>>) => unknown;

/** Called for each delivery: the events that it returns are published with the ack. */
export type Transformer<M extends TopicMap, P extends string> =
  (d: DeliveryOf<M, TopicsOf<M, P>>) => readonly EventOf<M>[] | Promise<readonly EventOf<M>[]>;

/** A loop over deliveries; leaving it leaves the group. */
export type Deliveries<D> = AsyncIterableIterator<D, undefined, undefined>;

/** The topics and patterns of the options, whose deliveries have their own types too. */
export interface MoreTopics<P extends string> { topics?: P[] }

let Http: typeof HttpApi | undefined;

/** Says what `hub.http` is. The package does so itself; in a page without a build step it is in a second file. */
export function provideHttp(api: typeof HttpApi): void { Http = api; }

type Listener = (detail: StateDetail) => void;

/** A hub at the other end of a WebSocket that is made again whenever it is lost. */
export class Hub<M extends TopicMap> {
  #http: HttpApi<M> | undefined;
  #link: Link;
  #publisher: Publisher;
  #subs = new Map<string, Subscription>();
  #owner: Owner;
  #listeners: Record<LinkState, Set<Listener>> = { connecting: new Set(), open: new Set(), closed: new Set() };
  #leaving = false;

  private constructor(urls: readonly string[], options: ConnectOptions) {
    this.#link = new Link(urls, options, {
      deliveries: (f, chars) => { this.#sub(f)?.deliver(f, chars); },
      complaint: (error) => { this.#complaint(error); },
      attached: () => { for (const s of this.#subs.values()) s.rejoin(); },
      detached: () => { for (const s of this.#subs.values()) s.lost(); },
      state: (state, detail) => { this.#tell(state, detail); },
    });
    this.#publisher = new Publisher(this.#link);
    this.#owner = { link: this.#link, subs: this.#subs, partings: new Map(), cursor: (topic, group) => this.getCursor(topic, group) };
  }

  /** @internal */
  static async connect<M extends TopicMap>(urls: string | readonly string[], options: ConnectOptions): Promise<Hub<M>> {
    const hub = new Hub<M>(typeof urls === "string" ? [urls] : urls, options);
    await hub.#link.open();
    return hub;
  }

  /** The HTTP API of the same hub: replay, state, dead letters, traces. */
  get http(): HttpApi<M> {
    if (!Http) throw new HubError("bad_request", "the HTTP API is a file of its own: import eventhub-http.min.js");
    return this.#http ??= new Http<M>(this.#link);
  }

  /** What the hub said of itself at the last sign-in. */
  get info(): HubInfo { return this.#link.info; }
  get state(): LinkState { return this.#link.state; }

  /** Listens to a state; the result takes that back. */
  on(state: LinkState, listener: Listener): () => void {
    this.#listeners[state].add(listener);
    return () => { this.#listeners[state].delete(listener); };
  }

  #tell(state: LinkState, detail: StateDetail): void {
    for (const listener of [...this.#listeners[state]]) {
      try {
        listener(detail);
      } catch (why) {
        this.#link.warn(`a listener of ${state} failed`, why);
      }
    }
    if (state === "closed" && detail.error) for (const s of [...this.#subs.values()]) s.end(detail.error);
  }

  #sub(f: { topic?: string | undefined; group?: string | undefined }): Subscription | undefined {
    return f.topic === undefined ? undefined : this.#subs.get(keyOf(f.topic, f.group));
  }

  #complaint(error: HubError): void {
    const sub = this.#sub(error);
    if (!sub) return; // a verdict that was refused
    if (error.passing) this.#link.cut(error); // the next connection takes the member back
    else {
      this.#link.warn(`the subscription ${sub.key} has ended`, error);
      sub.end(error);
    }
  }

  /** Publishes one event and resolves when it is on disk. */
  publish<K extends TopicName<M>>(topic: K, payload: PayloadOf<M, K>, options?: PublishOptions & WaitOptions): Promise<Receipt> {
    return this.#publisher.one(topic, payload, options);
  }

  /** Publishes events as one step: all of them, or none. */
  publishBatch(events: readonly EventOf<M>[], options: WaitOptions = {}): Promise<Receipt[]> {
    return this.#publisher.batch(events as readonly Outgoing[], options);
  }

  /** Publishes an event that enters the log later: after so many ms, or at a time. */
  delay<K extends TopicName<M>>(topic: K, payload: PayloadOf<M, K>, when: number | Date, options: PublishOptions & { signal?: AbortSignal } = {}): Promise<Receipt> {
    return this.publish(topic, payload, { ...options, ...(typeof when === "number" ? { delayMs: when } : { deliverAt: when.getTime() }) });
  }

  /** Takes a delayed event back. After a lost connection `unknown_id` may mean that the first try did. */
  cancel(topic: TopicName<M>, id: string, options: { signal?: AbortSignal } = {}): Promise<void> {
    return this.#request(Kind.Cancel, { op: "CANCEL", topic, id }, options.signal).then(() => undefined);
  }

  /** Joins a group, or without `group` follows a topic, and calls the handler for each delivery. */
  async subscribe<P extends string>(topic: P, options: SubscribeOptions & MoreTopics<P>, handler: Handler<M, P>): Promise<Subscription> {
    this.#check();
    const sub = new Subscription(this.#owner, topic, options);
    await sub.join(new Consumer(sub, this.#link, handler as unknown as AnyHandler));
    return sub;
  }

  /** Consumes by a handler that returns events: these are published with the ack, in one step. */
  async transform<P extends string>(topic: P, options: GroupOptions & MoreTopics<P>, transformer: Transformer<M, P>): Promise<Subscription> {
    const prefixes = new Map<string, string>();
    return this.subscribe(topic, options, (async (d: Delivery) => {
      const events = await (transformer as unknown as (d: Delivery) => readonly Outgoing[] | Promise<readonly Outgoing[]>)(d);
      if (events.length === 0) return;
      let prefix = prefixes.get(d.topic) ?? "";
      if (prefix === "" && events.some((e) => e.id === undefined)) {
        prefix = await resultPrefix(options.group, d.topic);
        if (prefixes.size < 10_000) prefixes.set(d.topic, prefix);
      }
      await d.ackAndPublish(resultsOf(d, prefix, events)).catch((why: unknown) => {
        if (!(why instanceof HubError && why.code === "lease_lost")) throw why;
        this.#link.warn(`the results of ${d.id} were not published here`, why);
      });
    }) as unknown as Handler<M, P>);
  }

  /** Joins a group, or without `group` follows a topic, as a loop; deliveries of a group are acked in it. */
  deliveries<P extends string>(topic: P, options: SubscribeOptions & MoreTopics<P> = {}): Deliveries<DeliveryOf<M, TopicsOf<M, P>>> {
    type D = DeliveryOf<M, TopicsOf<M, P>>;
    const sub = new Subscription(this.#owner, topic, options);
    const loop = new Loop(sub);
    let joined: Promise<void> | undefined;
    const { signal } = options;
    const off = onAbort(signal, () => { loop.ended(abortReason(signal)); });
    const it: Deliveries<D> = {
      [Symbol.asyncIterator]: () => it,
      next: async () => {
        if (!joined && !loop.over) {
          this.#check();
          joined = sub.join(loop);
        }
        await joined;
        const d = await loop.next();
        return d ? { done: false, value: d as unknown as D } : { done: true, value: undefined };
      },
      return: async () => {
        off();
        loop.ended(undefined); // also one that has not begun
        if (joined) await sub.close();
        return { done: true, value: undefined };
      },
    };
    return it;
  }

  /** Acks an event by its name: the lease of this connection that was given last. */
  ack(topic: string, group: string, id: string): Promise<void> {
    return this.#request(Kind.Settle, { op: "ACK", topic, group, id }).then(() => undefined);
  }

  /** Nacks an event by its name. */
  nack(topic: string, group: string, id: string, reason?: string): Promise<void> {
    return this.#request(Kind.Settle, { op: "NACK", topic, group, id, reason }).then(() => undefined);
  }

  /** How far a group is in a topic; null if there is no such group. */
  async getCursor(topic: string, group: string): Promise<CursorPosition | null> {
    return this.http.getCursor(topic, group);
  }

  /** Moves a group: everything after that place is delivered again. */
  async setCursor(topic: string, group: string, to: CursorPosition | SeekTarget): Promise<void> {
    await this.http.setCursor(topic, group, to);
  }

  #check(): void {
    this.#link.check();
    if (this.#leaving) throw new HubError("closed", "the client is being drained and takes no new subscriptions: connect again");
  }

  #request(kind: Kind, frame: object, signal?: AbortSignal): Promise<HubFrame> {
    if (signal?.aborted) return Promise.reject(abortReason(signal)); // it is not sent
    let r: Request;
    const answer = new Promise<HubFrame>((resolve, reject) => {
      r = this.#link.ask(kind, frame, (f, error) => { if (error) reject(error); else if (f) resolve(f); });
    });
    return orAbort(answer, signal).finally(() => { if (signal?.aborted) this.#link.forget(r); });
  }

  /** Lets handlers finish and answers arrive, then closes. Where the signal aborts before, the rest is closed at once. */
  async drain(options: { signal?: AbortSignal } = {}): Promise<void> {
    this.#leaving = true;
    try {
      await Promise.all([...this.#subs.values()].map((s) => s.drain(options)));
      await orAbort(this.#link.idle(), options.signal);
    } finally {
      await this.close();
    }
  }

  /** Ends the client at once: what is not answered is rejected, and leases go back to their groups. */
  async close(): Promise<void> {
    this.#leaving = true;
    await this.#link.close(new HubError("closed", "the client was closed by this program: connect again to use the hub"));
  }
}

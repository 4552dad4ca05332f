import type { Delivery } from "./delivery.ts";
import { messageOf } from "./errors.ts";
import { newId } from "./identity.ts";
import { connect } from "./index.ts";
import type { Hub } from "./hub.ts";
import { metrics } from "./metrics.ts";
import type { AnyTopics } from "./topics.ts";
import type { ConnectOptions, CursorPosition as HubCursor } from "./types.ts";

/** The names of the first clients, over the SDK: programs that were written for them change an import. */
export type UUID = string;
export type Millis = number;

export interface EventRecord<T = unknown> {
  id: UUID;
  sid?: UUID;
  ts: Millis;
  topic: string;
  key?: string;
  partition?: number;
  headers?: Record<string, string>;
  payload: T;
  caused_by?: UUID[];
  tags?: string[];
}

export interface CursorPosition { topic: string; lastId?: UUID; lastTs?: Millis }

export interface DeliveryContext {
  attempt: number;
  maxAttempts: number;
  /** How far the group is; the hub is asked when it is read. */
  readonly cursor: Promise<CursorPosition | null>;
}

export interface BusSubscribeOptions {
  from?: "latest" | "earliest" | "ts" | "afterId";
  ts?: Millis;
  afterId?: UUID;
  batchSize?: number;
  maxInFlight?: number;
  ackTimeoutMs?: number;
  maxAttempts?: number;
  /** Events for which it is false are acked without a call. */
  filter?(e: EventRecord): boolean;
  topics?: string[];
  /** The handler does not ack: the program calls `ack`. */
  manualAck?: boolean;
}

export interface BusPublishOptions {
  id?: UUID;
  ts?: Millis;
  key?: string;
  headers?: Record<string, string>;
  tags?: string[];
  caused_by?: UUID[];
  sid?: UUID;
}

export interface Ack { id: UUID; ok: boolean; err?: string }

export type BusHandler = (e: EventRecord, ctx: DeliveryContext) => Promise<void> | void;

export interface EventBus {
  publish<T>(topic: string, payload: T, opts?: BusPublishOptions): Promise<EventRecord<T>>;
  subscribe(topic: string, group: string, handler: BusHandler, opts?: BusSubscribeOptions): Promise<() => Promise<void>>;
  ack(topic: string, group: string, id: UUID): Promise<Ack>;
  nack(topic: string, group: string, id: UUID, reason?: string): Promise<Ack>;
  getCursor(topic: string, group: string): Promise<CursorPosition | null>;
  setCursor(topic: string, group: string, cursor: CursorPosition): Promise<void>;
}

/** What a bus without arguments connects to. */
const defaultUrl = "ws://127.0.0.1:8090";
/** As soon as this an event that was nacked comes again: those of the first bus came at once. */
const retry = { minMs: 10, maxMs: 1000 };

/** The first bus, over a hub: `EVENTHUB_URL` and `EVENTHUB_TOKEN` say which, unless the arguments do. */
export class HubEventBus implements EventBus {
  #hub: Promise<Hub<AnyTopics>>;
  /** The deliveries that have no verdict, by group and event. */
  #held = new Map<string, { d: Delivery; settled(): void }>();
  #published = metrics.counter("events_published_total", "Events that were published");
  #delivered = metrics.counter("events_delivered_total", "Events that were delivered");
  #acked = metrics.counter("events_acked_total", "Events that were acked");
  #nacked = metrics.counter("events_nacked_total", "Events that were nacked");

  constructor(url?: string, options?: ConnectOptions) {
    const env = (globalThis as { process?: { env: Record<string, string | undefined> } }).process?.env ?? {};
    this.#hub = connect(url ?? env.EVENTHUB_URL ?? defaultUrl, options ?? { token: env.EVENTHUB_TOKEN });
    this.#hub.catch(() => undefined); // whoever uses the bus is told
  }

  async publish<T>(topic: string, payload: T, opts: BusPublishOptions = {}): Promise<EventRecord<T>> {
    const { caused_by, ...rest } = opts;
    const id = opts.id ?? newId();
    await (await this.#hub).publish(topic, payload, { ...rest, id, ...(caused_by ? { causedBy: caused_by } : {}) });
    this.#published.inc({ topic });
    return { ...opts, id, ts: opts.ts ?? Date.now(), topic, payload };
  }

  async subscribe(topic: string, group: string, handler: BusHandler, opts: BusSubscribeOptions = {}): Promise<() => Promise<void>> {
    const { filter, manualAck = false, maxInFlight = 1000, ...rest } = opts;
    const hub = await this.#hub;
    const run = async (d: Delivery): Promise<void> => {
      const e = d.event as EventRecord;
      const labels = { topic: d.topic, group };
      if (filter && !filter(e)) return;
      this.#delivered.inc(labels);
      const key = nameOf(d.topic, group, d.id);
      let settled = (): void => undefined;
      const over = new Promise<void>((resolve) => { settled = resolve; });
      const held = { d, settled };
      this.#held.set(key, held);
      if (manualAck) d.signal.addEventListener("abort", settled); // the event is not ours any more
      try {
        await handler(e, { attempt: d.attempt, maxAttempts: d.maxAttempts, get cursor() { return d.cursor().then(positionOf); } });
        // The lease stays with the program until it says ack or nack, or loses it.
        if (manualAck) await over; else this.#acked.inc(labels);
      } catch (why) {
        this.#nacked.inc(labels);
        throw why;
      } finally {
        if (this.#held.get(key) === held) this.#held.delete(key);
      }
    };
    const s = await hub.subscribe(topic, { ...rest, group, maxInFlight, concurrency: maxInFlight, backoff: retry }, run);
    return () => s.close();
  }

  ack(topic: string, group: string, id: UUID): Promise<Ack> {
    return this.#verdict(topic, group, id, (d) => d.ack(), (hub) => hub.ack(topic, group, id));
  }

  nack(topic: string, group: string, id: UUID, reason?: string): Promise<Ack> {
    return this.#verdict(topic, group, id, (d) => d.nack(reason), (hub) => hub.nack(topic, group, id, reason));
  }

  async #verdict(topic: string, group: string, id: UUID, own: (d: Delivery) => Promise<void>, named: (hub: Hub<AnyTopics>) => Promise<void>): Promise<Ack> {
    const held = this.#held.get(nameOf(topic, group, id));
    try {
      await (held ? own(held.d) : named(await this.#hub));
      return { id, ok: true };
    } catch (why) {
      return { id, ok: false, err: messageOf(why) };
    } finally {
      held?.settled();
    }
  }

  async getCursor(topic: string, group: string): Promise<CursorPosition | null> {
    return positionOf(await (await this.#hub).getCursor(topic, group));
  }

  async setCursor(topic: string, group: string, cursor: CursorPosition): Promise<void> {
    await (await this.#hub).setCursor(topic, group, cursor);
  }

  async close(): Promise<void> { await (await this.#hub).close(); }
}

function nameOf(topic: string, group: string, id: string): string { return `${topic}::${group}::${id}`; }

function positionOf(c: HubCursor | null): CursorPosition | null {
  return c && { topic: c.topic, ...(c.lastId === undefined ? {} : { lastId: c.lastId }), ...(c.lastTs === undefined ? {} : { lastTs: c.lastTs }) };
}

/** The name that programs of the first bus import. */
export { HubEventBus as InMemoryEventBus };

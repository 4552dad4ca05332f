/**
 * The clients and the bus of the project's first sketches, as thin shells over the SDK.
 * @module
 */
import type { Delivery } from "./delivery.ts";
import { HubError } from "./errors.ts";
import type { Hub } from "./hub.ts";
import { connect } from "./index.ts";
import type { BusPublishOptions } from "./seed-bus.ts";
import type { Subscription } from "./subscription.ts";
import type { AnyTopics } from "./topics.ts";
import type { GroupOptions, Receipt } from "./types.ts";

export * from "./metrics.ts";
export * from "./seed-bus.ts";

/** The context of a delivery, as its frame has it. */
export interface FrameContext { attempt: number; max_attempts: number; ack_deadline_ms: number }
/** Options of a subscription in the spelling of the first clients. */
export type ClientSubscribeOptions = Omit<GroupOptions, "group" | "signal" | "onGap" | "onEnded">;
export type ClientHandler<T> = (event: { id: string; payload: T; ts: number; topic: string; key?: string; headers?: Record<string, string> }, ctx: FrameContext) => unknown;
export type PublishOpts = BusPublishOptions;

const defaultAckTimeout = 30_000;

/** What the two clients have in common: one hub, and subscriptions by topic and group. */
class Shell {
  #hub: Promise<Hub<AnyTopics>> | undefined;
  #open: () => Promise<Hub<AnyTopics>>;
  #subs = new Map<string, Subscription>();
  #held = new Map<string, Delivery>();

  constructor(url: string, token: string | undefined) { this.#open = () => connect(url, { token }); }

  hub(): Promise<Hub<AnyTopics>> {
    if (!this.#hub) {
      this.#hub = this.#open();
      this.#hub.catch(() => { this.#hub = undefined; }); // the next call tries again
    }
    return this.#hub;
  }

  async publish(topic: string, payload: unknown, opts: PublishOpts = {}): Promise<Receipt> {
    const { caused_by, ...rest } = opts;
    return (await this.hub()).publish(topic, payload, { ...rest, ...(caused_by ? { causedBy: caused_by } : {}) });
  }

  async subscribe<T>(topic: string, group: string, handler: ClientHandler<T>, opts: ClientSubscribeOptions = {}): Promise<void> {
    const hub = await this.hub();
    const run = async (d: Delivery): Promise<void> => {
      const key = `${topic}::${group}::${d.id}`;
      this.#held.set(key, d);
      try {
        await handler(d.event as { id: string; payload: T; ts: number; topic: string }, { attempt: d.attempt, max_attempts: d.maxAttempts, ack_deadline_ms: opts.ackTimeoutMs ?? defaultAckTimeout });
      } finally {
        if (this.#held.get(key) === d) this.#held.delete(key);
      }
    };
    // The first clients called a handler for each event as it came.
    this.#subs.set(`${topic}::${group}`, await hub.subscribe(topic, { concurrency: opts.maxInFlight ?? 100, ...opts, group }, run));
  }

  async unsubscribe(topic: string, group: string): Promise<void> {
    const s = this.#subs.get(`${topic}::${group}`);
    if (!s) throw new HubError("not_subscribed", `${topic}::${group}: subscribe first`);
    this.#subs.delete(`${topic}::${group}`);
    await s.close();
  }

  async extend(topic: string, group: string, id: string, ms: number): Promise<void> {
    const d = this.#held.get(`${topic}::${group}::${id}`);
    if (!d) throw new HubError("unknown_id", `no handler has ${id} of ${topic}::${group}`);
    await d.extend(ms);
  }

  async close(): Promise<void> { if (this.#hub) await (await this.#hub).close(); }
}

/** The small client of the second sketch. It connects at once. */
export class EventClient {
  #shell: Shell;

  constructor(url: string, token?: string) {
    this.#shell = new Shell(url, token);
    this.#shell.hub().catch(() => undefined); // the first call is told
  }

  publish(topic: string, payload: unknown, opts?: PublishOpts): Promise<Receipt> { return this.#shell.publish(topic, payload, opts); }
  subscribe<T = unknown>(topic: string, group: string, handler: ClientHandler<T>, opts?: ClientSubscribeOptions): Promise<void> { return this.#shell.subscribe(topic, group, handler, opts); }
  unsubscribe(topic: string, group: string): Promise<void> { return this.#shell.unsubscribe(topic, group); }
  modAck(topic: string, group: string, id: string, extendMs: number): Promise<void> { return this.#shell.extend(topic, group, id, extendMs); }
  close(): Promise<void> { return this.#shell.close(); }
}

/** The typed client of the third sketch. It connects with the first call. */
export class PromClient {
  #shell: Shell;

  constructor(url: string, token?: string) { this.#shell = new Shell(url, token); }

  async connect(): Promise<void> { await this.#shell.hub(); }
  async publish<T>(topic: string, payload: T, opts?: PublishOpts): Promise<void> { await this.#shell.publish(topic, payload, opts); }
  subscribe<T = unknown>(topic: string, group: string, handler: ClientHandler<T>, opts?: ClientSubscribeOptions): Promise<void> { return this.#shell.subscribe(topic, group, handler, opts); }
  unsubscribe(topic: string, group: string): Promise<void> { return this.#shell.unsubscribe(topic, group); }
  close(): Promise<void> { return this.#shell.close(); }
}

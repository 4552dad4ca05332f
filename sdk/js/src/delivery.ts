import type { Outgoing } from "./publisher.ts";
import type { WireContext, WireEvent } from "./frame.ts";
import type { CursorPosition, EventRecord, Gap, Receipt } from "./types.ts";

/** What a subscription does for its deliveries. */
export interface Settler {
  ack(d: Delivery<unknown, string>): Promise<void>;
  nack(d: Delivery<unknown, string>, why: unknown, verdict: NackOptions): Promise<void>;
  extend(d: Delivery<unknown, string>, ms: number | undefined): Promise<void>;
  ackAndPublish(d: Delivery<unknown, string>, events: readonly Outgoing[]): Promise<Receipt[]>;
  cursor(topic: string): Promise<CursorPosition | null>;
}

export interface NackOptions {
  /** When the event comes again, instead of after the group's backoff. */
  delayMs?: number;
  /** The event is a dead letter now. */
  terminal?: boolean;
}

/** One event, given to this program. `K` is its topic, `T` the type of its payload. */
export class Delivery<T = unknown, K extends string = string> {
  readonly event: EventRecord<T, K>;
  /** Which attempt this is, from 1; 0 of a live tail. */
  attempt: number;
  /** After how many attempts the event is given up; 0 of a live tail. */
  maxAttempts: number;
  /** How often the event was redriven; its attempts started at 1 again each time. */
  readonly redriven: number;
  /** The group was moved: what the program remembers of later events of the topic is out of date. */
  sought: boolean;
  /** Events that were removed before this one. */
  gap: Gap | undefined;
  /** Of a tail from `snapshot`: the event is of the state, and not a new one. */
  readonly state: boolean;
  /** With it a state begins, the first one or another: at its mark keys that it did not have are gone. */
  readonly stateBegins: boolean;
  /** @internal */ lease: string | undefined;
  /** @internal When the lease began. */ since: number;
  /** @internal About how many characters it had. */ readonly chars: number;
  /** @internal Names the event within its subscription. */ readonly spot: string;
  /** @internal Where the delivery is in its life. */ phase: "waiting" | "begun" | "handed" | "over" = "waiting";
  #settler: Settler;
  #abort: AbortController | undefined;

  /** @internal */
  constructor(settler: Settler, event: WireEvent, ctx: WireContext, since: number, chars: number) {
    this.#settler = settler;
    this.event = event as EventRecord<T, K>;
    this.attempt = ctx.attempt ?? 0;
    this.maxAttempts = ctx.max_attempts ?? 0;
    this.redriven = ctx.redriven ?? 0;
    this.sought = ctx.sought === true;
    this.lease = ctx.lease;
    this.gap = ctx.gap && { topic: event.topic, ...ctx.gap };
    this.state = ctx.state === true;
    this.stateBegins = this.state && ctx.snapshot !== undefined;
    this.since = since;
    this.chars = chars;
    this.spot = `${event.topic} ${event.id}`;
  }

  get id(): string { return this.event.id; }
  get topic(): K { return this.event.topic; }
  get key(): string | undefined { return this.event.key; }
  get offset(): number { return this.event.offset; }
  get payload(): T { return this.event.payload; }

  /** Aborts when the event is not this program's any more, so that a handler may stop. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController();
    return this.#abort.signal;
  }

  /** @internal */
  release(why: Error): void {
    this.phase = "over";
    (this.#abort ??= new AbortController()).abort(why);
  }

  /** The event is done. Resolves when the hub has said so; `lease_lost` if it is not ours any more. */
  ack(): Promise<void> { return this.#settler.ack(this); }

  /** The event comes again, or is a dead letter: `why` is kept with it. */
  nack(why?: unknown, verdict: NackOptions = {}): Promise<void> { return this.#settler.nack(this, why, verdict); }

  /** Moves the end of the lease to so many ms from now. The SDK does that by itself while a handler runs. */
  extend(ms?: number): Promise<void> { return this.#settler.extend(this, ms); }

  /** Publishes events and acks, in one step or not at all. */
  ackAndPublish(events: readonly Outgoing[]): Promise<Receipt[]> { return this.#settler.ackAndPublish(this, events); }

  /** How far the group is in the event's topic; it is asked for when it is called. */
  cursor(): Promise<CursorPosition | null> { return this.#settler.cursor(this.topic); }
}

/** The deliveries of some topics: a union, so that `d.topic` narrows the payload. */
export type DeliveryOf<M extends object, K extends string> =
  K extends keyof M ? Delivery<M[K], K> : Delivery<unknown, K>;

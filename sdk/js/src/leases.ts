import { now } from "./clock.ts";
import type { Delivery } from "./delivery.ts";
import type { HubError } from "./errors.ts";
import { leaseLost, type Verdicts } from "./verdicts.ts";

/** Of so many topics a subscription remembers the epoch. */
const maxEpochs = 1 << 16;

/**
 * The leases that a member holds, and keeps from running out. The event of a lease comes again where the
 * lease is over all the same: because its connection was lost, or no extension got through. If a handler
 * still has the event, the new lease is that handler's from then on.
 */
export class Leases {
  #held = new Map<string, Delivery>();
  #epochs = new Map<string, number>();
  #verdicts: Verdicts;
  #ackTimeout: number;
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(verdicts: Verdicts, ackTimeout: number) {
    this.#verdicts = verdicts;
    this.#ackTimeout = ackTimeout;
  }

  /** Holds a delivery; false if a handler, or a place in the queue, has its event already. */
  take(d: Delivery, epoch: number | undefined): boolean {
    this.#noteEpoch(d, epoch);
    if (d.sought) this.#void(d.topic);
    this.#timer ??= setInterval(() => { this.#extend(); }, Math.max(this.#ackTimeout / 4, 100));
    const before = this.#held.get(d.spot);
    if (before && before.redriven === d.redriven && (before.phase === "waiting" || before.phase === "begun")) {
      before.lease = d.lease;
      before.since = d.since;
      before.attempt = d.attempt;
      return false;
    }
    this.#held.set(d.spot, d);
    return true;
  }

  /** A hub says the epoch with the first delivery over each connection: so a seek shows that happened meanwhile. */
  #noteEpoch(d: Delivery, epoch: number | undefined): void {
    if (epoch === undefined) return;
    const last = this.#epochs.get(d.topic);
    if (last !== undefined && last !== epoch) d.sought = true;
    if (last === undefined && this.#epochs.size >= maxEpochs) {
      for (const topic of this.#epochs.keys()) {
        this.#epochs.delete(topic);
        break;
      }
    }
    this.#epochs.set(d.topic, epoch);
  }

  /** The group was moved in the topic: all that came before is handled again. */
  #void(topic: string): void {
    for (const [key, d] of this.#held) {
      if (d.topic !== topic) continue;
      this.#held.delete(key);
      d.release(leaseLost(`${d.id} of ${topic}`));
    }
  }

  /** Lets go of deliveries that nobody has begun: they come again. */
  forget(waiting: Delivery[]): void {
    for (const d of waiting) {
      if (d.phase !== "waiting") continue;
      this.#held.delete(d.spot);
      if (d.sought) this.#epochs.set(d.topic, 0); // another delivery has to say it
      d.phase = "over";
    }
  }

  #isHeld(d: Delivery): boolean {
    return d.phase !== "over" && d.phase !== "handed" && this.#held.get(d.spot) === d;
  }

  /** The lease of a delivery that gets its verdict now; undefined if it is not ours any more. */
  release(d: Delivery): string | undefined {
    if (!this.#isHeld(d)) return undefined;
    this.#held.delete(d.spot);
    d.phase = "over";
    return d.lease;
  }

  prolong(d: Delivery, ms: number | undefined): string | undefined {
    if (!this.#isHeld(d)) return undefined;
    d.since = now() + (ms === undefined ? 0 : ms - this.#ackTimeout);
    return d.lease;
  }

  /** The lease of a delivery whose results are on their way; it is extended meanwhile. */
  hand(d: Delivery): string | undefined {
    if (!this.#isHeld(d)) return undefined;
    d.phase = "handed";
    return d.lease;
  }

  finish(d: Delivery): void {
    if (this.#held.get(d.spot) === d) this.#held.delete(d.spot);
    d.phase = "over";
  }

  #extend(): void {
    const at = now();
    const due: string[] = [];
    for (const d of this.#held.values()) {
      if (d.lease === undefined || at - d.since < this.#ackTimeout / 2) continue;
      d.since = at;
      due.push(d.lease);
    }
    if (due.length > 0) this.#verdicts.keep(due, this.#ackTimeout);
  }

  close(why: HubError): void {
    clearInterval(this.#timer);
    for (const d of this.#held.values()) d.release(why);
    this.#held.clear();
  }
}

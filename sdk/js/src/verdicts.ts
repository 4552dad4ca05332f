import { HubError, messageOf, quiet, VerdictError } from "./errors.ts";
import type { NackOptions } from "./delivery.ts";
import { Kind, type Link } from "./link.ts";

interface Waiter { resolve(): void; reject(why: unknown): void }

const maxLeases = 1000;
/** The longest delay of a nack that the hub takes, in ms. */
const maxDelay = 24 * 3_600_000;
/** What the hub keeps of a reason, in bytes. */
const maxReason = 1024;

export function leaseLost(what: string): HubError {
  return new HubError("lease_lost", `${what}: its lease has ended, it was settled before, or the group was moved`);
}

/**
 * The verdicts of one subscription. Acks that are given at once go out in one frame; all verdicts are
 * kept until they are answered, and sent again, by lease, on the next connection.
 */
export class Verdicts {
  #link: Link;
  #name: { topic: string; group: string };
  /** The leases of acks that are not sent, and by their place who waits for them. */
  #acks: string[] = [];
  #waiting = new Map<number, Waiter>();
  #planned = false;
  #open = 0;
  #idle: (() => void)[] = [];

  constructor(link: Link, topic: string, group: string) {
    this.#link = link;
    this.#name = { topic, group };
  }

  ack(lease: string): Promise<void> {
    return quiet(new Promise<void>((resolve, reject) => {
      this.quietly(lease);
      this.#waiting.set(this.#acks.length - 1, { resolve, reject });
    }));
  }

  /** An ack that nobody waits for. */
  quietly(lease: string): void {
    this.#acks.push(lease);
    if (this.#planned) return;
    this.#planned = true;
    queueMicrotask(() => { this.flush(); });
  }

  /** Sends what has gathered. */
  flush(): void {
    this.#planned = false;
    const acks = this.#acks, waiting = this.#waiting;
    this.#acks = [];
    this.#waiting = new Map();
    for (let from = 0; from < acks.length; from += maxLeases) {
      this.#request({ op: "ACK", lease: acks.slice(from, from + maxLeases) }, (stale, error) => {
        for (const [at, { resolve, reject }] of waiting) {
          if (at < from || at >= from + maxLeases) continue;
          if (error) reject(error);
          else if (stale(at - from)) reject(leaseLost("the ack had no effect"));
          else resolve();
        }
      });
    }
  }

  nack(lease: string, why: unknown, verdict: NackOptions): Promise<void> {
    const { delayMs, terminal } = why instanceof VerdictError ? { ...why.verdict, ...verdict } : verdict;
    return this.#one({ op: "NACK", lease, reason: why === undefined ? why : cut(messageOf(why)), delay_ms: delayMs && Math.ceil(Math.min(Math.max(delayMs, 0), maxDelay)), terminal }, "the nack had no effect");
  }

  extend(lease: string, ms: number | undefined): Promise<void> {
    return this.#one({ op: "MODACK", lease, extend_ms: ms && Math.round(ms) }, "the lease was not extended");
  }

  /** Extends leases that a timer has found; nobody waits for it. */
  keep(leases: string[], ms: number): void {
    for (let i = 0; i < leases.length; i += maxLeases) {
      this.#link.post(JSON.stringify({ op: "MODACK", ...this.#name, lease: leases.slice(i, i + maxLeases), extend_ms: ms }));
    }
  }

  #one(frame: object, lost: string): Promise<void> {
    return quiet(new Promise<void>((resolve, reject) => {
      this.flush();
      this.#request(frame, (stale, error) => {
        if (error?.code === "unknown_id" || (!error && stale(0))) reject(leaseLost(lost));
        else if (error) reject(error);
        else resolve();
      });
    }));
  }

  #request(frame: object, done: (stale: (i: number) => boolean, error: HubError | undefined) => void): void {
    this.#open++;
    this.#link.ask(Kind.Settle, { ...frame, ...this.#name }, (ok, error) => {
      const at = ok?.stale_at ? new Set(ok.stale_at) : undefined;
      done((i) => at ? at.has(i) : ok?.stale === true, error);
      if (--this.#open === 0) for (const resolve of this.#idle.splice(0)) resolve();
    });
  }

  /** Resolves when every verdict is answered. */
  async settled(): Promise<void> {
    this.flush();
    if (this.#open > 0) await new Promise<void>((resolve) => { this.#idle.push(resolve); });
  }
}

/** A reason as the hub takes it: not too long, and with whole characters. */
function cut(reason: string): string {
  const encoder = new TextEncoder(); // which writes a replacement for half of a character
  return new TextDecoder().decode(encoder.encode(reason).subarray(0, maxReason - 4)).replace(/\ufffd$/, "");
}

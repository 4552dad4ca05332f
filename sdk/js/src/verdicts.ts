import { HubError, messageOf, quiet, VerdictError } from "./errors.ts";
import { checkSurrogates } from "./frame.ts";
import type { NackOptions } from "./delivery.ts";
import { Kind, type Link } from "./link.ts";

interface Ack { lease: string; resolve(): void; reject(why: unknown): void }

const maxLeases = 1000;
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
  #name: string;
  #acks: Ack[] = [];
  #planned = false;
  #open = 0;
  #idle: (() => void)[] = [];

  constructor(link: Link, topic: string, group: string) {
    this.#link = link;
    this.#name = `"topic":${JSON.stringify(topic)},"group":${JSON.stringify(group)}`;
  }

  ack(lease: string): Promise<void> {
    return quiet(new Promise<void>((resolve, reject) => {
      this.#acks.push({ lease, resolve, reject });
      if (!this.#planned) {
        this.#planned = true;
        queueMicrotask(() => { this.flush(); });
      }
    }));
  }

  /** Sends what has gathered. */
  flush(): void {
    this.#planned = false;
    while (this.#acks.length > 0) {
      const acks = this.#acks.splice(0, maxLeases);
      const leases = acks.map((a) => a.lease);
      this.#request(`{"op":"ACK",${this.#name},"lease":${JSON.stringify(leases.length === 1 ? leases[0] : leases)}`, (stale, error) => {
        acks.forEach((a, i) => {
          if (error) a.reject(error);
          else if (stale(i)) a.reject(leaseLost("the ack had no effect"));
          else a.resolve();
        });
      });
    }
  }

  nack(lease: string, why: unknown, verdict: NackOptions): Promise<void> {
    const { delayMs, terminal } = why instanceof VerdictError ? { ...why.verdict, ...verdict } : verdict;
    const members = JSON.stringify({ reason: why === undefined ? undefined : cut(messageOf(why)), delay_ms: delayMs, terminal }).slice(1, -1);
    return this.#one(`{"op":"NACK",${this.#name},"lease":${JSON.stringify(lease)}${members && `,${members}`}`, "the nack had no effect");
  }

  extend(lease: string, ms: number | undefined): Promise<void> {
    return this.#one(`{"op":"MODACK",${this.#name},"lease":${JSON.stringify(lease)}${ms === undefined ? "" : `,"extend_ms":${Math.round(ms)}`}`, "the lease was not extended");
  }

  /** Extends leases that a timer has found; nobody waits for it. */
  keep(leases: string[], ms: number): void {
    for (let i = 0; i < leases.length; i += maxLeases) {
      this.#link.post(`{"op":"MODACK",${this.#name},"lease":${JSON.stringify(leases.slice(i, i + maxLeases))},"extend_ms":${ms}}`);
    }
  }

  /** The members that name one delivery in an ACK with publish. */
  static ackOf(topic: string, group: string, lease: string): string {
    return `{"op":"ACK","topic":${JSON.stringify(topic)},"group":${JSON.stringify(group)},"lease":${JSON.stringify(lease)}`;
  }

  #one(text: string, lost: string): Promise<void> {
    return quiet(new Promise<void>((resolve, reject) => {
      this.flush();
      this.#request(text, (stale, error) => {
        if (error?.code === "unknown_id" || (!error && stale(0))) reject(leaseLost(lost));
        else if (error) reject(error);
        else resolve();
      });
    }));
  }

  #request(text: string, done: (stale: (i: number) => boolean, error: HubError | undefined) => void): void {
    const corr = this.#link.nextCorr();
    this.#open++;
    this.#link.request({
      kind: Kind.Settle, corr, text: `${text},"corr":"${corr}"}`,
      done: (ok, error) => {
        const at = ok?.stale_at ? new Set(ok.stale_at) : undefined;
        done((i) => at ? at.has(i) : ok?.stale === true, error);
        if (--this.#open === 0) for (const resolve of this.#idle.splice(0)) resolve();
      },
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
  let text = reason.length * 3 > maxReason ? reason.slice(0, maxReason) : reason;
  while (new TextEncoder().encode(text).length > maxReason) text = text.slice(0, -16);
  try {
    checkSurrogates(JSON.stringify(text), "reason");
    return text;
  } catch {
    return text.replace(/[\ud800-\udfff]/g, "\ufffd");
  }
}

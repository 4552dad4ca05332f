import { HubError } from "./errors.ts";
import { checkSurrogates, encodePayload, isLonger, snake, type HubFrame } from "./frame.ts";
import { identify, type Identified } from "./identity.ts";
import { Kind, pauseOf, type Link, type Request } from "./link.ts";
import { abortReason, onAbort } from "./signal.ts";
import type { PublishOptions, Receipt, WaitOptions } from "./types.ts";

/** An event on its way out. */
export interface Outgoing extends PublishOptions {
  topic: string;
  payload: unknown;
}

/** Events as a frame has them, and who they are. */
export interface Encoded { json: string[]; ids: Identified[] }

/** One event as the element of a list, and with its identity. */
function encodeEvent(event: Outgoing, ids: Identified[]): { topic: string; payload: string; opts: string } {
  const { topic, payload, ...options } = event;
  if (typeof topic !== "string" || topic === "") throw new HubError("bad_topic", "the event has no topic: give the name of one");
  const it = identify(options.id);
  ids.push(it);
  return { topic: JSON.stringify(topic), payload: encodePayload(payload), opts: JSON.stringify({ ...snake(options), id: it.id }) };
}

export function encodeEvents(events: readonly Outgoing[]): Encoded {
  const ids: Identified[] = [];
  const json = events.map((event, index) => {
    try {
      const e = encodeEvent(event, ids);
      return `{"topic":${e.topic},"payload":${e.payload},"opts":${e.opts}}`;
    } catch (why) {
      if (why instanceof HubError) throw new HubError(why.code, `events[${index}]: ${why.message}`, { index, cause: why });
      throw why;
    }
  });
  return { json, ids };
}

/** The receipts of an OK, under the ids that were sent. */
export function receiptsOf(ids: readonly Identified[], f: HubFrame): Receipt[] {
  const later = Array.isArray(f.deliver_at) ? f.deliver_at : f.deliver_at === undefined ? [] : [f.deliver_at];
  const again = new Set(f.duplicate ? [0] : f.duplicates ?? []);
  const offsets = f.offsets ?? [f.offset ?? 0];
  return ids.map((it, i) => {
    const r: Receipt = { id: it.id, offset: offsets[i] ?? 0, duplicate: again.has(i) && !it.made };
    if (later[i]) r.deliverAt = later[i];
    return r;
  });
}

/** Publishes one event, or several as one step. */
export class Publisher {
  #link: Link;

  constructor(link: Link) { this.#link = link; }

  one(event: Outgoing, wait: WaitOptions): Promise<Receipt> {
    return this.#guard(async () => {
      const ids: Identified[] = [];
      const e = encodeEvent(event, ids);
      const opts = wait.waitFor ? `${e.opts.slice(0, -1)},${waitJson(wait)}}` : e.opts;
      const receipts = await this.#send(`"topic":${e.topic},"payload":${e.payload},"opts":${opts}`, ids, wait.signal);
      return receipts[0] ?? { id: "", offset: 0, duplicate: false };
    });
  }

  batch(events: readonly Outgoing[], wait: WaitOptions): Promise<Receipt[]> {
    return this.#guard(() => {
      if (events.length === 0) return Promise.resolve([]);
      const { json, ids } = encodeEvents(events);
      return this.#send(`"events":[${json.join(",")}]${wait.waitFor ? `,"opts":{${waitJson(wait)}}` : ""}`, ids, wait.signal);
    });
  }

  /** What is wrong with a call is a rejected promise too. */
  #guard<T>(run: () => Promise<T>): Promise<T> {
    try {
      this.#link.check();
      return run();
    } catch (why) {
      return Promise.reject(why as Error);
    }
  }

  #send(members: string, ids: Identified[], signal: AbortSignal | undefined): Promise<Receipt[]> {
    return sendEvents(this.#link, { kind: Kind.Publish, text: `{"op":"PUBLISH",${members}`, ids, signal, retries: () => true });
  }
}

function waitJson(wait: WaitOptions): string {
  return JSON.stringify(snake({ waitFor: wait.waitFor, waitMs: wait.waitMs })).slice(1, -1);
}

/** A frame with events: a publish, or an ack with results. */
export interface Sending {
  kind: Kind.Publish | Kind.AckPublish;
  /** The frame, without its corr and its end. */
  text: string;
  ids: Identified[];
  signal: AbortSignal | undefined;
  /** Whether to send it again after a refusal that passes. */
  retries(error: HubError): boolean;
}

/** Sends events as one step, again after a lost connection, and after the pause that a limit asks for. */
export async function sendEvents(link: Link, s: Sending): Promise<Receipt[]> {
  const items = s.ids.length;
  const limit = link.info.limits.max_frame_bytes;
  if (isLonger(s.text, limit - 32)) {
    throw new HubError("too_large", `the frame has more than the ${limit} bytes that the hub takes: publish less in one call`);
  }
  checkSurrogates(s.text, "event");
  if (s.signal?.aborted) throw abortReason(s.signal);
  if (!link.room.take(items, s.text.length)) await link.room.wait(items, s.text.length, s.signal);
  return new Promise<Receipt[]>((resolve, reject) => {
    let cancelPause: (() => void) | undefined;
    const finish = (then: () => void): void => {
      off();
      link.room.give(items, s.text.length);
      then();
    };
    const corr = link.nextCorr();
    const r: Request = {
      kind: s.kind, corr, text: `${s.text},"corr":"${corr}"}`,
      done: (ok, error) => {
        if (ok && !error) finish(() => { resolve(receiptsOf(s.ids, ok)); });
        else if (error && isPassing(error) && s.retries(error)) {
          cancelPause = link.later(pauseOf(error), () => { link.request(r); }, () => { finish(() => { reject(error); }); });
        } else if (error) finish(() => { reject(explain(error, ok, s.ids, r.resent === true && s.kind === Kind.AckPublish)); });
      },
    };
    const off = onAbort(s.signal, () => {
      cancelPause?.();
      link.forget(r);
      finish(() => { reject(abortReason(s.signal)); });
    });
    link.request(r);
  });
}

function isPassing(error: HubError): boolean {
  return error.code === "rate_limited" || (error.code === "overloaded" && error.retryAfterMs !== undefined);
}

/** An error that says what is known of the events. */
function explain(error: HubError, f: HubFrame | undefined, ids: Identified[], doubt: boolean): HubError {
  const say = (more: string, receipts: Receipt[]): HubError => new HubError(error.code, error.message + more, { ...error, receipts, cause: error });
  if (f && (f.id ?? f.ids)) return say("", receiptsOf(ids, f)); // published all the same
  const maybe = receiptsOf(ids, { op: "" });
  if (!f) return say("; the event may be published: publish again with the ids of receipts", maybe);
  return doubt && error.code === "lease_lost" ? say(". It was sent over a lost connection too, and may have been carried out", maybe) : error;
}

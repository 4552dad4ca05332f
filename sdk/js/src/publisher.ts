import { HubError } from "./errors.ts";
import { checkSurrogates, encodePayload, snake, type HubFrame } from "./frame.ts";
import { identify, unnamed, type Identified } from "./identity.ts";
import { checkLength, Kind, pauseOf, type Link, type Request } from "./link.ts";
import { abortReason, onAbort } from "./signal.ts";
import type { PublishOptions, Receipt, WaitOptions } from "./types.ts";

/** An event on its way out. */
export interface Outgoing extends PublishOptions {
  topic: string;
  payload: unknown;
}

/** Events as a frame has them, and who they are. */
export interface Encoded { json: string; ids: Identified[] }

/** The options of whoever gives none. */
const none: PublishOptions & WaitOptions = {};

/**
 * Whether a publish may have a number: the program gave no id, and no time, which would be a delay also where it is
 * over. One that waits for groups has none: it may wait until its number is forgotten.
 */
function isFree(options: PublishOptions): boolean { return options.id === undefined && options.deliverAt === undefined; }

/** The members of one event; with `numbered` it has no id. */
function encodeEvent(topic: string, payload: unknown, options: PublishOptions, ids: Identified[], numbered: boolean, wait = ""): string {
  if (typeof topic !== "string" || topic === "") throw new HubError("bad_topic", "the event has no topic: give the name of one");
  const it = numbered ? unnamed : identify(options.id);
  ids.push(it);
  let opts = it.id && `"id":"${it.id}"`;
  if (options !== none) {
    const more = JSON.stringify(snake(options)).slice(1, -1); // with the id that is given
    opts = [it.made ? opts : "", more, wait].filter(Boolean).join();
  }
  return checkSurrogates(`"topic":${JSON.stringify(topic)},"payload":${encodePayload(payload)}${opts && `,"opts":{${opts}}`}`);
}

/** The elements of a list of events. */
export function encodeEvents(events: readonly Outgoing[], numbered = false): Encoded {
  const ids: Identified[] = [];
  const json = events.map(({ topic, payload, ...options }, index) => {
    try {
      return `{${encodeEvent(topic, payload, options, ids, numbered)}}`;
    } catch (why) {
      if (why instanceof HubError) throw new HubError(why.code, `events[${index}]: ${why.message}`, { index, cause: why });
      throw why;
    }
  }).join();
  return { json, ids };
}

/** The receipts of an OK, under the ids that were sent. */
export function receiptsOf(ids: readonly Identified[], f: HubFrame): Receipt[] {
  const later = Array.isArray(f.deliver_at) ? f.deliver_at : [f.deliver_at];
  return ids.map((it, i) => {
    const again = f.duplicates ? f.duplicates.includes(i) : f.duplicate === true;
    const r: Receipt = { id: it.id || (f.ids?.[i] ?? f.id ?? ""), offset: (f.offsets ? f.offsets[i] : f.offset) ?? 0, duplicate: again && !it.made };
    if (later[i]) r.deliverAt = later[i];
    return r;
  });
}

/** Publishes one event, or several as one step. */
export class Publisher {
  #link: Link;

  constructor(link: Link) { this.#link = link; }

  one(topic: string, payload: unknown, given: (PublishOptions & WaitOptions) | undefined): Promise<Receipt> {
    return new Promise((resolve, reject) => { // what is wrong with a call is a rejected promise too
      this.#link.check();
      let options: PublishOptions = none, wait: WaitOptions = none;
      if (given) {
        const { waitFor, waitMs, signal, ...rest } = given;
        options = rest;
        wait = { waitFor, waitMs, signal } as WaitOptions;
      }
      const numbered = !wait.waitFor && isFree(options) && this.#link.numbered(), ids: Identified[] = [];
      const json = encodeEvent(topic, payload, options, ids, numbered, waitJson(wait));
      this.#send(json, ids, numbered, wait.signal, (receipts) => { resolve(receipts[0] as Receipt); }, reject);
    });
  }

  batch(events: readonly Outgoing[], wait: WaitOptions): Promise<Receipt[]> {
    return new Promise((resolve, reject) => {
      this.#link.check();
      if (events.length === 0) {
        resolve([]);
        return;
      }
      const numbered = !wait.waitFor && events.every(isFree) && this.#link.numbered(), { json, ids } = encodeEvents(events, numbered), opts = waitJson(wait);
      this.#send(`"events":[${json}]${opts && `,"opts":{${opts}}`}`, ids, numbered, wait.signal, resolve, reject);
    });
  }

  #send(members: string, ids: Identified[], numbered: boolean, signal: AbortSignal | undefined, resolve: (r: Receipt[]) => void, reject: (why: Error) => void): void {
    new Sending(this.#link, Kind.Publish, `{"op":"PUBLISH",${members}`, ids, numbered, signal, resolve, reject).begin();
  }
}

function waitJson({ waitFor, waitMs }: WaitOptions): string {
  return waitFor ? JSON.stringify(snake({ waitFor, waitMs })).slice(1, -1) : "";
}

/**
 * A frame with events, a publish or an ack with results, on its way as one step: again after a lost connection, and
 * after the pause that a limit asks for. One of both callbacks is called, once.
 */
export class Sending implements Request {
  readonly kind: Kind;
  readonly text: string;
  corr = 0;
  seq: number | undefined;
  sent = false;
  resent = false;
  /** Whether to send it again after a refusal that passes. */
  retries: (() => boolean) | undefined;
  #link: Link;
  #ids: Identified[];
  #signal: AbortSignal | undefined;
  #resolve: (receipts: Receipt[]) => void;
  #reject: (why: Error) => void;
  #off: (() => void) | undefined;
  #cancelPause: (() => void) | undefined;

  /** `text` is the frame, without its corr, its number and its end. */
  constructor(link: Link, kind: Kind, text: string, ids: Identified[], numbered: boolean, signal: AbortSignal | undefined, resolve: (receipts: Receipt[]) => void, reject: (why: Error) => void) {
    this.#link = link;
    this.kind = kind;
    this.text = text;
    this.seq = numbered ? 0 : undefined;
    this.#ids = ids;
    this.#signal = signal;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  /** Throws what is wrong with it before it is sent. */
  begin(): void {
    const link = this.#link, signal = this.#signal;
    checkLength(this.text, link.info.limits.max_frame_bytes);
    if (signal?.aborted) throw abortReason(signal);
    if (link.room.take(this.#ids.length, this.text.length)) this.#enter();
    else link.room.wait(this.#ids.length, this.text.length, signal, () => { this.#enter(); }, this.#reject);
  }

  #enter(): void {
    const link = this.#link, signal = this.#signal;
    if (signal) {
      this.#off = onAbort(signal, () => {
        this.#cancelPause?.();
        link.forget(this);
        this.#fail(abortReason(signal));
      });
    }
    link.request(this);
  }

  done(ok: HubFrame | undefined, error: HubError | undefined): void {
    if (ok && !error) {
      const receipts = receiptsOf(this.#ids, ok);
      this.#finish();
      this.#resolve(receipts);
    } else if (error && isPassing(error) && this.retries?.() !== false) {
      this.#cancelPause = this.#link.later(pauseOf(error), () => { this.#link.request(this); }, () => { this.#fail(error); });
    } else if (error) this.#fail(this.#explain(error, ok));
  }

  #fail(why: Error): void {
    this.#finish();
    this.#reject(why);
  }

  #finish(): void {
    this.#off?.();
    this.#link.room.give(this.#ids.length, this.text.length);
  }

  /** An error that says what is known of the events. */
  #explain(error: HubError, f: HubFrame | undefined): HubError {
    const say = (more: string, receipts?: Receipt[]): HubError => new HubError(error.code, error.message + more, { ...error, receipts, cause: error });
    if (f && (f.id ?? f.ids)) return say("", receiptsOf(this.#ids, f)); // published all the same
    const named = this.seq === undefined ? receiptsOf(this.#ids, { op: "" }) : undefined;
    if (error.code === "unknown_producer") return error;
    if (!f) return this.sent ? say(`; the event may be published${named ? ": publish again with the ids of receipts" : ""}`, named) : say("; the event is not published", named);
    return this.resent && this.kind === Kind.AckPublish && error.code === "lease_lost" ? say(". It was sent over a lost connection too, and may have been carried out", named) : error;
  }
}

function isPassing(error: HubError): boolean {
  return error.code === "rate_limited" || (error.code === "overloaded" && error.retryAfterMs !== undefined);
}

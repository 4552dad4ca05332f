import type { Receipt } from "./types.ts";

/** The codes of the protocol, and those that the SDK gives itself. */
export type HubCode =
  | "bad_json" | "bad_request" | "bad_topic" | "bad_event" | "too_large"
  | "unauthorized" | "no_token" | "bad_token" | "jwt_invalid" | "forbidden"
  | "rate_limited" | "publish_failed" | "ack_failed" | "lease_lost" | "wait_timeout"
  | "already_subscribed" | "not_subscribed" | "group_mismatch" | "unknown_id" | "gone"
  | "bad_sequence" | "fenced" | "unknown_producer"
  | "unsupported_op" | "conflict" | "overloaded" | "shutting_down" | "not_active" | "internal"
  /** No hub could be reached. */
  | "unreachable"
  /** The hub speaks another version of the protocol. */
  | "protocol"
  /** The connection was closed by this program. */
  | "closed";

/** What an error may carry besides its code and its sentence. */
export interface HubErrorDetails {
  /** How long to wait before the same request may succeed. */
  retryAfterMs?: number | undefined;
  /** The subscription that has ended. */
  topic?: string | undefined;
  group?: string | undefined;
  /** The place, from 0, of the event of a batch that was refused. */
  index?: number | undefined;
  /** Of a `conflict`: the offset that there is. */
  present?: number | undefined;
  /** The events that are published all the same, or that may be: publish again under these ids. */
  receipts?: Receipt[] | undefined;
  cause?: unknown;
}

/** The one class of errors of the SDK. Programs branch on `code`; the message is for people. */
export class HubError extends Error {
  readonly code: HubCode;
  declare readonly retryAfterMs?: number | undefined;
  declare readonly topic?: string | undefined;
  declare readonly group?: string | undefined;
  declare readonly index?: number | undefined;
  declare readonly present?: number | undefined;
  declare readonly receipts?: Receipt[] | undefined;

  constructor(code: HubCode, message: string, details: HubErrorDetails = {}) {
    const { cause, ...rest } = details;
    super(message, cause === undefined ? undefined : { cause });
    this.name = "HubError";
    this.code = code;
    for (const [name, value] of Object.entries(rest)) if (value !== undefined) Object.assign(this, { [name]: value });
  }

  /** Who asks is not accepted, or not for this: another token or another right is needed. */
  get denied(): boolean {
    return /^(unauthorized|no_token|bad_token|jwt_invalid|forbidden)$/.test(this.code);
  }

  /** The refusal is about the hub's state: the same request may succeed later. */
  get passing(): boolean {
    return /^(rate_limited|overloaded|shutting_down|not_active|internal|unreachable)$/.test(this.code);
  }
}

/** What a handler throws to say when, or that never, the event comes again. */
export class VerdictError extends Error {
  constructor(
    message: string,
    readonly verdict: { delayMs?: number; terminal?: boolean },
    cause: unknown,
  ) {
    super(message, { cause });
    this.name = "VerdictError";
  }
}

/** An error for a handler to throw: the event comes again after `delayMs`. */
export function retryAfter(delayMs: number, why: unknown): Error {
  return new VerdictError(messageOf(why), { delayMs }, why);
}

/** An error for a handler to throw: the event is a dead letter at once. */
export function terminal(why: unknown): Error {
  return new VerdictError(messageOf(why), { terminal: true }, why);
}

/** The text of whatever was thrown. */
export function messageOf(why: unknown): string {
  try {
    return String(why instanceof Error ? why.message : why);
  } catch { // an object without a prototype has no text, and a getter may throw
    return "no text";
  }
}

/** Who stays unaware of a failure has not asked for it: the promise counts as handled. */
export function quiet<P extends Promise<unknown>>(promise: P): P {
  promise.catch(() => undefined);
  return promise;
}

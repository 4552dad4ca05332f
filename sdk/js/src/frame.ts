import { HubError, messageOf, type HubCode } from "./errors.ts";
import type { WireProducer } from "./numbers.ts";

/** A value that JSON.parse gives. */
export type Json = string | number | boolean | null | Json[] | { [name: string]: Json };

/** A frame of the hub; its members are those of docs/protocol.md. */
export interface HubFrame {
  op: string;
  corr?: string;
  code?: string;
  msg?: string;
  topic?: string;
  group?: string;
  index?: number;
  present?: number;
  retry_after_ms?: number;
  id?: string;
  offset?: number;
  duplicate?: boolean;
  deliver_at?: number | number[];
  ids?: string[];
  offsets?: number[];
  duplicates?: number[];
  stale?: boolean;
  stale_at?: number[];
  known?: string;
  gaps?: WireGap[];
  producer?: WireProducer;
  count?: number;
  horizon?: number;
  snapshot?: string;
  ended?: { topic: string; ts: number; cursor: number }[];
  event?: WireEvent;
  ctx?: WireContext;
  events?: { event: WireEvent; ctx?: WireContext }[];
}

export interface WireGap { topic: string; after: number; first: number; compacted?: number; tombstones?: number }

export interface WireContext {
  attempt?: number;
  max_attempts?: number;
  ack_deadline_ms?: number;
  lease?: string;
  epoch?: number;
  sought?: boolean;
  redriven?: number;
  gap?: Omit<WireGap, "topic">;
  state?: boolean;
  snapshot?: string;
}

export interface WireEvent {
  offset: number;
  ts: number;
  committed_ts?: number;
  id: string;
  topic: string;
  partition: number;
  key?: string;
  sid?: string;
  headers?: Record<string, string>;
  tags?: string[];
  caused_by?: string[];
  payload: unknown;
}

/** JSON.stringify, which writes a lone surrogate as an escape that the hub refuses. */
const loneSurrogate = /(?:^|[^\\])(?:\\\\)*\\ud[89a-f]/;

/** The JSON of a payload. What JSON can not say is refused, and not left out. */
export function encodePayload(payload: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(payload);
  } catch (why) {
    const hint = typeof payload === "bigint" || messageOf(why).includes("BigInt")
      ? "write a BigInt as a string or a number" : "take out what refers to itself";
    throw new HubError("bad_event", `the payload is not JSON (${messageOf(why).split("\n")[0] ?? ""}): ${hint}`, { cause: why });
  }
  if (text === undefined || (text === "null" && payload !== null && typeof payload === "number")) {
    throw new HubError("bad_event", `the payload is ${typeof payload === "number" ? payload : typeof payload}, which JSON does not have: publish null`);
  }
  return text;
}

/** Refuses a text with half of a surrogate pair, as a string has that was cut. */
export function checkSurrogates(json: string, code: HubCode = "bad_event"): string {
  if (json.includes("\\ud") && loneSurrogate.test(json)) {
    throw new HubError(code, "a text has a lone surrogate: call toWellFormed()");
  }
  return json;
}

/** Names of options in JavaScript are camelCase, those of the protocol snake_case. */
export function snake(options: object): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options)) {
    if (typeof value === "number" && !Number.isFinite(value)) { // JSON has null for it, and the hub would take the default
      throw new HubError("bad_request", `${name} is ${value}`);
    }
    if (value !== undefined) {
      out[name.replace(/[A-Z]/g, (c) => "_" + c.toLowerCase())] =
        nested.has(name) && typeof value === "object" && value !== null ? snake(value as object) : value as unknown;
    }
  }
  return out;
}

const nested = new Set(["expect", "backoff", "conflate"]);

/** Whether a text has more than so many bytes of UTF-8. */
export function isLonger(text: string, bytes: number): boolean {
  if (text.length * 3 <= bytes) return false;
  return text.length > bytes || new TextEncoder().encode(text).length > bytes;
}

/** The error that an ERR frame is. */
export function errorOf(f: HubFrame): HubError {
  return new HubError((f.code ?? "internal") as HubError["code"], f.msg ?? "the hub gave no reason", {
    retryAfterMs: f.retry_after_ms, topic: f.topic, group: f.group, index: f.index, present: f.present,
  });
}

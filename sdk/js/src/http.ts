import type { DeadLetter, RedriveResult, Routes, SeekPlan, Trace } from "./api.gen.ts";
import { HubError, messageOf } from "./errors.ts";
import type { Link } from "./link.ts";
import { abortReason } from "./signal.ts";
import type { PayloadOf, TopicMap } from "./topics.ts";
import type { CursorPosition, EventRecord, Gap, SeekTarget } from "./types.ts";

/** A method and a path, as docs/http.md has them. */
export type Route = keyof Routes;

type HasParams<K extends Route> = keyof Routes[K]["params"] extends never ? false : true;

/** What a call of a route is given: the parts of its path, where it has some, cannot be left out. */
export type CallOptions<K extends Route> = (HasParams<K> extends true ? { params: Routes[K]["params"] } : { params?: Routes[K]["params"] }) & {
  query?: Partial<Routes[K]["query"]>;
  body?: Routes[K]["body"];
  signal?: AbortSignal | undefined;
};

interface Problem { code?: string; detail?: string; title?: string; index?: number; present?: number }

/** The HTTP API of the same hub, with the same token. `M` maps topics to payloads. */
export class HttpApi<M extends TopicMap> {
  #link: Link;

  /** @internal */
  constructor(link: Link) { this.#link = link; }

  /** Calls a route: `call("GET /v1/topics/{topic}", { params: { topic } })`. */
  async call<K extends Route>(route: K, ...[given]: HasParams<K> extends true ? [options: CallOptions<K>] : [options?: CallOptions<K>]): Promise<Routes[K]["answer"]> {
    const options = (given ?? {}) as { params?: object; query?: object; body?: unknown; signal?: AbortSignal | undefined };
    this.#link.check();
    const [method = "", template = ""] = route.split(" ");
    const params = (options.params ?? {}) as Record<string, unknown>;
    const path = template.replace(/\{(\w+)\}/g, (_, name: string) => segmentOf(name, params[name]));
    const signal = AbortSignal.any([this.#link.closing, ...(options.signal ? [options.signal] : [])]);
    const token = await this.#link.token(signal);
    const headers: Record<string, string> = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const init: RequestInit = { method, headers, signal };
    if (options.body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(options.body);
    }
    let failure: unknown;
    for (const { http } of this.#link.urls) {
      let answer: Response, text: string;
      try {
        answer = await fetch(http + path + queryOf(options.query ?? {}), init);
        text = await answer.text();
      } catch (why) {
        this.#link.check();
        if (options.signal?.aborted) throw abortReason(options.signal);
        failure = why;
        if (method === "GET") continue;
        break; // whether a change was made is not known: it is not made again
      }
      if (!answer.ok) throw problemOf(answer, text);
      return (text === "" ? undefined : JSON.parse(text)) as Routes[K]["answer"];
    }
    throw new HubError("unreachable", `${method} ${path}: ${messageOf((failure as Error).cause ?? failure)}`, { cause: failure });
  }

  /** The past of a topic, page by page; `onGap` says, before the events of a page, up to which offset compaction may have removed some. */
  async *replay<K extends string>(topic: K, options: { from?: SeekTarget; signal?: AbortSignal; onGap?(gap: Gap): void } = {}): AsyncGenerator<EventRecord<PayloadOf<M, K>, K>, void, undefined> {
    let query: Partial<Routes["GET /replay"]["query"]> = { topic, limit: 1000, ...startOf(options.from ?? "earliest") } as object;
    for (;;) {
      const page = await this.call("GET /replay", { query, signal: options.signal });
      if (page.gap) options.onGap?.({ topic, ...page.gap });
      yield* page.events as EventRecord<PayloadOf<M, K>, K>[];
      if (!page.next) return;
      query = { topic, limit: 1000, ...page.next };
    }
  }

  /** The newest event of each key, now or at an offset or a time; all pages are of one offset. */
  async *state<K extends string>(topic: K, options: { prefix?: string; keys?: string[]; at?: number | string; minOffset?: number; signal?: AbortSignal } = {}): AsyncGenerator<EventRecord<PayloadOf<M, K>, K>, void, undefined> {
    if (options.keys?.length === 0) return; // without the parameter the answer would be all keys
    const fixed = { prefix: options.prefix, keys: options.keys, limit: 1000 };
    let query = { ...fixed, at: options.at, min_offset: options.minOffset } as Record<string, unknown>;
    for (;;) {
      // Without the parameter key, which stands for one event, the answer is a page.
      const page = await this.call("GET /v1/topics/{topic}/state", { params: { topic }, query: query as object, signal: options.signal }) as { events: unknown[]; next?: string };
      yield* page.events as EventRecord<PayloadOf<M, K>, K>[];
      if (!page.next) return;
      query = { ...fixed, page: page.next };
    }
  }

  /** The dead letters of a topic, the oldest first. */
  async *deadLetters(topic: string, options: Partial<Routes["GET /v1/dlq/{topic}"]["query"]> & { signal?: AbortSignal } = {}): AsyncGenerator<DeadLetter, void, undefined> {
    const { signal, ...query } = options;
    for (let after = query.after; ;) {
      const page = await this.call("GET /v1/dlq/{topic}", { params: { topic }, query: { ...query, ...(after === undefined ? {} : { after }) }, signal });
      yield* page.dead_letters;
      if (page.next === undefined) return;
      after = page.next;
    }
  }

  /** Gives dead letters back to their groups: only with `apply`; without it the answer says what it would do. */
  redrive(topic: string, which: Routes["POST /v1/dlq/{topic}/redrive"]["body"], options: { apply?: boolean; signal?: AbortSignal } = {}): Promise<RedriveResult> {
    return this.call("POST /v1/dlq/{topic}/redrive", { params: { topic }, query: options.apply ? { apply: "1" } : {}, body: which, signal: options.signal });
  }

  /** What led to an event, and what resulted from it. */
  trace(id: string, options: { depth?: number; limit?: number; signal?: AbortSignal } = {}): Promise<Trace> {
    const { signal, ...query } = options;
    return this.call("GET /v1/events/{id}/trace", { params: { id }, query, signal });
  }

  /** Moves a group: only with `apply`; without it the answer says what it would do. */
  seek(topic: string, group: string, to: SeekTarget, options: { apply?: boolean; signal?: AbortSignal } = {}): Promise<SeekPlan> {
    return this.call("POST /v1/topics/{topic}/groups/{group}/seek", { params: { topic, group }, query: options.apply ? { apply: "1" } : {}, body: startOf(to) as Routes["POST /v1/topics/{topic}/groups/{group}/seek"]["body"], signal: options.signal });
  }

  /** @internal */
  async getCursor(topic: string, group: string): Promise<CursorPosition | null> {
    try {
      const g = await this.call("GET /v1/topics/{topic}/groups/{group}", { params: { topic, group } });
      return { topic, offset: g.cursor, ...(g.last_id === undefined ? {} : { lastId: g.last_id }), ...(g.last_ts === undefined ? {} : { lastTs: g.last_ts }) };
    } catch (why) {
      if (why instanceof HubError && (why.code === "unknown_id" || why.code === "not_subscribed")) return null;
      throw why;
    }
  }

  /** @internal */
  async setCursor(topic: string, group: string, to: CursorPosition | SeekTarget): Promise<void> {
    await this.seek(topic, group, seekOf(to), { apply: true });
  }
}

/** A part of a path. What would be a part of none, or name another route, is refused. */
function segmentOf(name: string, value: unknown): string {
  const text = typeof value === "number" ? String(value) : value;
  if (typeof text !== "string" || /^\.{0,2}$/.test(text)) {
    throw new HubError("bad_request", `a path can not have ${text === undefined ? "no" : `"${String(text)}" as`} ${name}: ${text === undefined ? "give it in params" : "fetch would take it for another path"}`);
  }
  try {
    return encodeURIComponent(text);
  } catch (cause) {
    throw new HubError("bad_request", `${name} has a lone surrogate, half of a character: call toWellFormed()`, { cause });
  }
}

function seekOf(to: CursorPosition | SeekTarget): SeekTarget {
  if (typeof to === "string" || !("topic" in to)) return to;
  if (to.offset !== undefined) return { offset: to.offset + 1 };
  if (to.lastId !== undefined) return { afterId: to.lastId };
  return to.lastTs === undefined ? "earliest" : { ts: to.lastTs };
}

/** A place in a topic, as bodies and queries have it. */
function startOf(to: SeekTarget): Record<string, unknown> {
  if (typeof to === "string") return { from: to };
  if ("ts" in to) return { from: "ts", ts: to.ts };
  return "afterId" in to ? { from: "after_id", after_id: to.afterId } : { from: "offset", offset: to.offset };
}

function queryOf(query: object): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value as unknown[] : [value]) if (one !== undefined) q.append(name, String(one));
  }
  const text = q.toString();
  return text && `?${text}`;
}

function problemOf(answer: Response, text: string): HubError {
  let problem: Problem = {};
  try {
    problem = JSON.parse(text) as Problem;
  } catch { /* not of the hub: the status is all there is */ }
  const seconds = Number(answer.headers.get("retry-after") ?? NaN);
  return new HubError((problem.code ?? "internal") as HubError["code"], problem.detail ?? problem.title ?? `${answer.status} ${answer.statusText}`, {
    index: problem.index, present: problem.present, retryAfterMs: Number.isFinite(seconds) ? seconds * 1000 : undefined,
  });
}

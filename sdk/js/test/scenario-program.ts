import { connect, HubError, retryAfter, terminal, type Delivery, type Hub, type Subscription } from "../src/index.ts";
import type { AnyTopics } from "../src/topics.ts";
import { stateMap } from "../src/state.ts";
import type { ScenarioClock } from "./scenario-clock.ts";
import { patience, type Bindings, type Frame, type ScriptHub, type Value } from "./scenario-hub.ts";

/** An event that a program publishes. */
export interface CallEvent {
  topic: string; payload?: Value; id?: string; key?: string; headers?: Record<string, string>; tags?: string[]; delay_ms?: number; key_offset?: number;
}

/** The arguments of a call. */
export interface Call extends CallEvent {
  events?: CallEvent[]; wait_for?: string[]; wait_ms?: number; group?: string; from?: string; after_id?: string; offset?: number; ts?: number;
  topics?: string[]; filter?: string; concurrency?: number; max_in_flight?: number; ack_timeout_ms?: number; max_attempts?: number;
  ordering?: "none" | "key"; no_create?: boolean; every_ms?: number; event?: string; reason?: string; reason_times?: number; terminal?: boolean; extend_ms?: number;
  /** What handlers do by themselves. */
  auto?: "return" | "fail_once" | "slow" | "results";
}

export interface ProgramStep { do?: string; as?: string; of?: string; with?: Call }

export interface ProgramOptions {
  unconnected?: boolean; tokens?: (string | { jwt_s?: number; fails?: boolean })[]; token?: string; client?: string; states?: boolean; max_pending?: number; numbers?: boolean;
}

interface Verdict { error?: unknown; events: ReturnType<typeof eventOf>[] }

function eventOf(e: CallEvent): { topic: string; payload: Value } & Record<string, unknown> {
  return { topic: e.topic, payload: e.payload ?? 1, ...optionsOf(e) };
}

function optionsOf(e: CallEvent): Record<string, unknown> {
  return Object.fromEntries(Object.entries({ id: e.id, key: e.key, headers: e.headers, tags: e.tags, delayMs: e.delay_ms,
    expect: e.key_offset === undefined ? undefined : { keyOffset: e.key_offset } }).filter(([, v]) => v !== undefined));
}

/** An error as both SDKs describe it. */
function failed(why: unknown): Frame {
  if (!(why instanceof HubError)) return { code: why instanceof Error && why.name === "AbortError" ? "aborted" : `not of the SDK: ${String(why)}` };
  return { code: why.code, ...(why.index === undefined ? {} : { index: why.index }), ...(why.present === undefined ? {} : { present: why.present }) };
}

/** The program of a scenario: calls of the SDK, each of which goes on by itself, and what they were told. */
export class Program {
  hub: Hub<AnyTopics> | undefined;
  #clock: ScenarioClock;
  #vars: Bindings;
  #options: ProgramOptions;
  #script: Pick<ScriptHub, "class">;
  #asked = 0;
  #outcomes = new Map<string, Frame[]>();
  #stops = new Map<string, AbortController>();
  #subs = new Map<string, Subscription>();
  #verdicts = new Map<string, (v: Verdict) => void>();
  #held = new Map<string, Delivery>();
  /** The subscriptions whose handlers finish before they are left. */
  #handled = new Set<string>();
  #leaving = new Map<string, Promise<void>>();

  constructor(options: ProgramOptions, script: Pick<ScriptHub, "class">, clock: ScenarioClock, vars: Bindings) {
    this.#options = options;
    this.#script = script;
    this.#clock = clock;
    this.#vars = vars;
  }

  /** Closes the client and lets go of all handlers. */
  async end(): Promise<void> {
    const closing = this.hub?.close();
    for (const resolve of this.#verdicts.values()) resolve({ events: [] });
    await this.#clock.settle();
    await closing;
  }

  #list(name: string): Frame[] {
    const list = this.#outcomes.get(name) ?? [];
    this.#outcomes.set(name, list);
    return list;
  }

  tell(name: string, kind: string, more: Frame = {}): void { this.#list(name).push({ ...more, kind }); }

  async told(name: string, is: Frame): Promise<void> {
    const list = this.#list(name);
    const got = await this.#clock.wait(() => list.shift(), patience);
    if (!got) throw new Error(`an outcome of ${name} did not come`);
    this.#vars.match(`the outcome of ${name}`, is, got);
  }

  unread(): string[] {
    return [...this.#outcomes].flatMap(([name, list]) => list.splice(0).map((o) => `the outcome of ${name} ${JSON.stringify(o)}`));
  }

  /** Takes the deliveries of a subscription; what else it was told is taken as it is. */
  payloads(name: string): Value[] { return this.#list(name).splice(0).map((o) => o.kind === "delivery" ? o.payload ?? null : o); }

  /** The source of tokens: those of the scenario, one after the other. */
  #token(): string {
    const tokens = this.#options.tokens ?? [];
    const at = Math.min(this.#asked++, tokens.length - 1);
    const token = tokens[at];
    if (typeof token === "string") return token;
    if (!token?.jwt_s) throw new Error("the issuer is away");
    const claims = JSON.stringify({ exp: Math.floor(this.#clock.now / 1000) + token.jwt_s, n: at });
    const text = `e30.${Buffer.from(claims).toString("base64url")}.c2ln`;
    this.#vars.set(`token${at}`, text);
    return text;
  }

  async #connect(name: string): Promise<void> {
    const o = this.#options;
    try {
      const hub = await connect<AnyTopics>("ws://127.0.0.1:1", {
        WebSocket: this.#script.class, warn: () => undefined, backoff: { minMs: 10, maxMs: 200 },
        ...(o.tokens ? { token: () => this.#token() } : o.token === undefined ? {} : { token: o.token }),
        ...(o.client === undefined ? {} : { name: o.client }), ...(o.max_pending === undefined ? {} : { maxPending: o.max_pending }),
      });
      this.hub = hub;
      if (o.states) for (const state of ["connecting", "open"] as const) hub.on(state, () => { this.tell("state", state); });
      this.tell(name, "ok", { protocol: hub.info.protocol });
    } catch (why) {
      this.tell(name, "error", failed(why));
    }
  }

  /** Reports what becomes of a call. */
  #report<T>(name: string, call: Promise<T>, describe: (value: T) => Frame = () => ({})): void {
    call.then((value) => { this.tell(name, "ok", describe(value)); }, (why: unknown) => { this.tell(name, "error", failed(why)); });
  }

  #begin(name: string): AbortSignal {
    const stop = new AbortController();
    this.#stops.set(name, stop);
    return stop.signal;
  }

  do(s: ProgramStep): void {
    const { as = "", of = "" } = s, w = s.with ?? { topic: "" };
    if (s.do === "connect") { void this.#connect(as); return; }
    const hub = this.hub;
    if (!hub) throw new Error("the client is not connected");
    switch (s.do) {
      case "publish": {
        const wait = w.wait_for ? { waitFor: w.wait_for, ...(w.wait_ms === undefined ? {} : { waitMs: w.wait_ms }) } : {};
        this.#report(as, hub.publish(w.topic, w.payload ?? 1, { ...optionsOf(w), ...wait, signal: this.#begin(as) }), receiptOf);
        break;
      }
      case "batch": this.#report(as, hub.publishBatch((w.events ?? []).map(eventOf), { signal: this.#begin(as) }), (r) => ({ receipts: r.map(receiptOf) })); break;
      case "cancel": this.#report(as, hub.cancel(w.topic, w.id ?? "")); break;
      case "close": this.#report(as, hub.close()); break;
      case "drain": this.#report(as, hub.drain({ signal: this.#begin(as) })); break;
      case "give_up": this.#stops.get(of)?.abort(); break;
      case "leave": this.#leave(of); break;
      case "consume": case "subscribe": case "follow": case "tail": case "transform": void this.#join(hub, s.do, as, w); break;
      case "return": this.#settle(of, w, undefined); break;
      case "fail": this.#settle(of, w, reasonOf(w)); break;
      case "ack": case "nack": case "extend": case "ack_and_publish": this.#settleByHand(s.do, as, of, w); break;
      case "state": void this.#keepState(hub, as, w); break;
      case "pause": this.#report(as, this.#sub(of).pause()); break;
      case "resume": this.#report(as, this.#sub(of).resume()); break;
      default: throw new Error(`there is no call ${s.do ?? ""}`);
    }
  }

  #sub(name: string): Subscription {
    const sub = this.#subs.get(name);
    if (!sub) throw new Error(`there is no subscription ${name}`);
    return sub;
  }

  #leave(name: string): void {
    const sub = this.#sub(name);
    this.#leaving.set(name, this.#handled.has(name) ? sub.drain() : sub.close());
  }

  /** Begins a subscription and reports its end. */
  async #join(hub: Hub<AnyTopics>, kind: string, name: string, w: Call): Promise<void> {
    const options = Object.fromEntries(Object.entries({
      group: w.group, from: w.from === "after_id" ? "afterId" : w.from, afterId: w.after_id, offset: w.offset, ts: w.ts, topics: w.topics, filter: w.filter,
      concurrency: kind === "subscribe" ? 1000 : w.concurrency, maxInFlight: w.max_in_flight, ackTimeoutMs: w.ack_timeout_ms, maxAttempts: w.max_attempts, ordering: w.ordering,
      create: w.no_create ? false : undefined, conflate: w.every_ms === undefined ? undefined : { everyMs: w.every_ms },
      onGap: (g: { topic: string; after: number; first: number }) => { this.tell(name, "gap", { topic: g.topic, after: g.after, first: g.first }); },
      onState: w.from === "snapshot" ? (m: { offset?: number; count?: number; horizon?: number }) => {
        this.tell(name, "mark", m.count === undefined ? { horizon: m.horizon ?? 0 } : { offset: m.offset ?? 0, count: m.count });
      } : undefined,
      onEnded: w.group === undefined ? undefined : (e: { topic: string; cursor: number }) => { this.tell(name, "began_anew", { topic: e.topic, cursor: e.cursor }); },
    }).filter(([, v]) => v !== undefined));
    if (kind === "consume" || kind === "transform") this.#handled.add(name);
    try {
      const handler = (d: Delivery): unknown => this.#handle(name, kind, d, w.auto);
      const sub = await (kind === "transform"
        ? hub.transform(w.topic, options as { group: string }, handler as never)
        : hub.subscribe(w.topic, options, handler as never));
      this.#subs.set(name, sub);
      await sub.closed;
      await this.#leaving.get(name); // the hub has said so too
      this.tell(name, "ended");
    } catch (why) {
      this.tell(name, "ended", failed(why));
    }
  }

  async #handle(name: string, kind: string, d: Delivery, auto: Call["auto"]): Promise<unknown> {
    const key = `${name}/${d.id}`;
    if (auto) {
      const isFirst = !this.#held.has(key);
      this.#held.set(key, d);
      this.tell(name, "delivery", deliveryOf(d));
      if (auto === "fail_once" && isFirst) throw new Error("the first time");
      if (auto === "slow") await new Promise((resolve) => setTimeout(resolve, 10_000));
      return auto === "results" ? [{ topic: "made", payload: d.payload }] : undefined;
    }
    this.#held.set(key, d);
    const verdict = new Promise<Verdict>((resolve) => { this.#verdicts.set(key, resolve); });
    this.tell(name, "delivery", deliveryOf(d));
    if (kind === "follow" || kind === "tail") return undefined;
    const { error, events } = await verdict;
    if (error !== undefined) throw error as Error;
    return events;
  }

  /** Keeps the state of a topic as a map; that it is loaded is an outcome of its own. */
  async #keepState(hub: Hub<AnyTopics>, name: string, w: Call): Promise<void> {
    try {
      const map = await stateMap(hub, w.topic, { ...(w.key === undefined ? {} : { keys: w.key }), onChange: (c) => {
        this.tell(name, "change", { key: c.key, offset: c.offset, ...(c.added ? { added: true } : { old: c.old as Value }), ...(c.removed ? { removed: true } : { new: c.new as Value }) });
      } });
      await map.waitLoaded();
      this.tell(`${name} loaded`, "ok", { offset: map.offset, size: map.size });
    } catch (why) {
      this.tell(`${name} loaded`, "error", failed(why));
    }
  }

  #settle(of: string, w: Call, error: unknown): void {
    const resolve = this.#verdicts.get(`${of}/${w.event ?? ""}`);
    if (!resolve) throw new Error(`no handler of ${of} has ${w.event ?? ""}`);
    this.#verdicts.delete(`${of}/${w.event ?? ""}`);
    resolve({ error, events: (w.events ?? []).map(eventOf) });
  }

  #settleByHand(what: string, as: string, of: string, w: Call): void {
    const d = this.#held.get(`${of}/${w.event ?? ""}`);
    if (!d) throw new Error(`${of} has no ${w.event ?? ""}`);
    if (what === "ack") this.#report(as, d.ack());
    else if (what === "nack") this.#report(as, d.nack(reasonOf(w)));
    else if (what === "extend") this.#report(as, d.extend(w.extend_ms));
    else this.#report(as, d.ackAndPublish((w.events ?? []).map(eventOf)));
  }
}

/** The error of a handler that fails. */
function reasonOf(w: Call): Error {
  const why = new Error((w.reason ?? "").repeat(w.reason_times ?? 1));
  if (w.terminal) return terminal(why);
  return w.delay_ms === undefined ? why : retryAfter(w.delay_ms, why);
}

function receiptOf(r: { id: string; offset: number; duplicate: boolean; deliverAt?: number }): Frame {
  return { id: r.id, offset: r.offset, duplicate: r.duplicate, ...(r.deliverAt === undefined ? {} : { deliver_at: r.deliverAt }) };
}

function deliveryOf(d: Delivery): Frame {
  return {
    id: d.id, topic: d.topic, offset: d.offset, payload: d.payload as Value, ...(d.attempt > 0 ? { attempt: d.attempt } : {}),
    ...(d.state ? { state: true } : {}), ...(d.sought ? { sought: true } : {}), ...(d.redriven > 0 ? { redriven: d.redriven } : {}),
  };
}

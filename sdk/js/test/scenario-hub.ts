import type { WebSocketClass, WebSocketLike } from "../src/index.ts";
import type { ScenarioClock } from "./scenario-clock.ts";

export type Value = string | number | boolean | null | Value[] | { [name: string]: Value };
export type Frame = Record<string, Value>;

/** What a scenario waits for at most, in ms of its clock. */
export const patience = 300_000;

const isFrame = (v: Value | undefined): v is Frame => typeof v === "object" && v !== null && !Array.isArray(v);
const show = (v: unknown): string => JSON.stringify(v);

/** The placeholders of a scenario: "$name" is bound where it is met first. */
export class Bindings {
  #vars = new Map<string, Value>();

  set(name: string, v: Value): void { this.#vars.set(name, v); }

  /**
   * Compares what came with what is wanted: objects need the members that are named, lists all of their
   * elements. "$any" is anything, "$none" an absent member.
   */
  match(at: string, want: Value, got: Value | undefined): void {
    if (typeof want === "string" && want.length > 1 && want.startsWith("$")) this.#matchName(at, want.slice(1), got);
    else if (Array.isArray(want)) {
      if (!Array.isArray(got) || got.length !== want.length) throw new Error(`${at} is ${show(got)}; want ${show(want)}`);
      want.forEach((w, i) => { this.match(`${at}[${i}]`, w, got[i]); });
    } else if (isFrame(want)) this.#matchObject(at, want, got);
    else if (want !== got) throw new Error(`${at} is ${show(got)}; want ${show(want)}`);
  }

  #matchObject(at: string, want: Frame, got: Value | undefined): void {
    if (this.#matchSpecial(at, want, got)) return;
    if (!isFrame(got)) throw new Error(`${at} is ${show(got)}; want ${show(want)}`);
    for (const [name, w] of Object.entries(want)) {
      const v = got[name];
      if (w === "$none") {
        if (v !== undefined) throw new Error(`${at}.${name} is ${show(v)}; want none`);
      } else if (v === undefined) throw new Error(`${at} has no ${name}; want ${show(w)} in ${show(got)}`);
      else this.match(`${at}.${name}`, w, v);
    }
  }

  /** Compares with what no JSON can say: a list in any order, a text that was cut. */
  #matchSpecial(at: string, want: Frame, got: Value | undefined): boolean {
    const { all_of: all, repeats, most_bytes: most } = want;
    if (Array.isArray(all)) {
      if (!Array.isArray(got) || got.length !== all.length) throw new Error(`${at} is ${show(got)}; want all of ${show(all)}`);
      const has = (w: Value): boolean => got.some((g) => {
        try { this.match(at, w, g); return true; } catch { return false; }
      });
      for (const w of all) if (!has(w)) throw new Error(`${at} is ${show(got)}; want ${show(w)} in it`);
      return true;
    }
    if (typeof repeats !== "string") return false;
    const bytes = typeof got === "string" ? new TextEncoder().encode(got).length : 0;
    if (bytes === 0 || String(got).replaceAll(repeats, "") !== "" || bytes > Number(most) || bytes < Number(most) - 8) throw new Error(`${at} has ${bytes} bytes: ${show(got)}`);
    return true;
  }

  #matchName(at: string, name: string, got: Value | undefined): void {
    if (name === "any") return;
    const bound = this.#vars.get(name);
    if (bound === undefined) {
      if (got !== undefined) this.#vars.set(name, got);
    } else if (show(bound) !== show(got)) throw new Error(`${at} is ${show(got)}; want ${show(bound)}, which is $${name}`);
  }

  /** Puts what is bound in the place of names. */
  fill(v: Value): Value {
    if (typeof v === "string") return v.length > 1 && v.startsWith("$") ? this.#vars.get(v.slice(1)) ?? null : v;
    if (Array.isArray(v)) return v.map((one) => this.fill(one));
    return isFrame(v) ? Object.fromEntries(Object.entries(v).map(([name, one]) => [name, this.fill(one)])) : v;
  }
}

/** An event that the hub delivers. */
export interface Gift { to?: string; group?: string; topic: string; id: string; offset: number; key?: string; payload?: Value; ctx?: Frame }

/** A step of the hub. */
export interface HubStep {
  as?: string; accept?: Frame; hello?: Frame; refuse?: boolean; expect?: Frame; answer?: Frame; to?: string; send?: Frame; text?: string;
  deliver?: Gift[]; cut?: boolean; close?: number; gone?: boolean; mute?: boolean;
}

/** A WebSocket in memory: the program's end is the class, the hub's end are the methods with on. */
export class FakeSocket implements WebSocketLike {
  onopen: ((event: never) => void) | null = null;
  onmessage: ((event: never) => void) | null = null;
  onerror: ((event: never) => void) | null = null;
  onclose: ((event: never) => void) | null = null;
  /** Frames of the client that no step has taken. */
  readonly frames: Frame[] = [];
  over = false;
  mute = false;
  /** Told of every frame of the client. */
  heard: ((f: Frame) => void) | undefined;

  send(text: string): void {
    if (this.over) return;
    const f = JSON.parse(text) as Frame;
    if (f.op === "PING") { // the sign of life that is asked for, and no frame of a scenario
      this.say({ op: "ERR", code: "unsupported_op", msg: "there is no PING", corr: f.corr ?? null });
      return;
    }
    for (const name of ["lease", "ids"]) { // a list of one means the same as the one
      const list = f[name];
      if (Array.isArray(list) && list.length === 1) f[name] = list[0] ?? null;
    }
    if (this.heard) this.heard(f); else this.frames.push(f);
  }

  close(): void {
    if (this.over) return;
    this.over = true;
    queueMicrotask(() => { this.onclose?.({ code: 1000, reason: "" } as never); });
  }

  say(f: Frame): void { this.write(JSON.stringify(f)); }

  /** What the hub sends arrives after what the client does now. */
  write(text: string): void {
    if (!this.mute) queueMicrotask(() => { if (!this.over) this.onmessage?.({ data: text } as never); });
  }

  open(): void { this.onopen?.({} as never); }

  /** The hub ends the connection, after all that it has sent. */
  end(code: number, reason = ""): void {
    queueMicrotask(() => {
      if (this.over) return;
      this.over = true;
      if (code === 1006) this.onerror?.({ message: "" } as never);
      this.onclose?.({ code, reason } as never);
    });
  }
}

/** The hub of a scenario: it does what the steps say. */
export class ScriptHub {
  readonly class: WebSocketClass;
  arrivals: FakeSocket[] = [];
  #clock: ScenarioClock;
  #vars: Bindings;
  #socket: FakeSocket | undefined;
  #named = new Map<string, Frame>();
  #last: Frame | undefined;

  constructor(clock: ScenarioClock, vars: Bindings) {
    this.#clock = clock;
    this.#vars = vars;
    const { arrivals } = this;
    this.class = class extends FakeSocket {
      constructor() {
        super();
        arrivals.push(this);
      }
    };
  }

  async #next<T>(what: string, from: () => T | undefined): Promise<T> {
    const got = await this.#clock.wait(from, patience);
    if (got === undefined) throw new Error(`${what} did not come`);
    return got;
  }

  #open(): FakeSocket {
    if (!this.#socket) throw new Error("there is no connection");
    return this.#socket;
  }

  async play(s: HubStep): Promise<void> {
    if (s.accept) await this.#accept(s, s.accept);
    else if (s.refuse) (await this.#next("a connection", () => this.arrivals.shift())).end(1006);
    else if (s.expect) {
      const socket = this.#open();
      const f = await this.#next("a frame", () => socket.frames.shift());
      this.#last = f;
      if (s.as) this.#named.set(s.as, f);
      this.#vars.match("the frame", s.expect, f);
    } else if (s.answer) this.#answer(s, s.answer);
    else if (s.send) this.#open().say(this.#vars.fill(s.send) as Frame);
    else if (s.text !== undefined) this.#open().write(s.text);
    else if (s.deliver) for (const gift of s.deliver) this.#open().say(frameOf(gift));
    else if (s.mute) this.#open().mute = true;
    else if (s.cut) this.#open().end(1006);
    else if (s.close !== undefined) this.#open().end(s.close, "so it is");
    else if (s.gone) {
      const socket = this.#open();
      await this.#next("the end", () => socket.over || socket.frames.length > 0 || undefined);
      if (socket.frames.length > 0) throw new Error(`a frame came: ${show(socket.frames[0])}`);
    } else throw new Error("the step says nothing");
  }

  async #accept(s: HubStep, auth: Frame): Promise<void> {
    const socket = await this.#next("a connection", () => this.arrivals.shift());
    const left = this.#unreadFrames();
    if (left.length > 0) throw new Error(`the connection before had more:\n${left.join("\n")}`);
    this.#socket = socket;
    socket.open();
    const f = await this.#next("AUTH", () => socket.frames.shift());
    this.#vars.match("AUTH", { op: "AUTH" }, f);
    this.#vars.match("AUTH", auth, f);
    socket.say({ ...hello, ...this.#vars.fill(s.hello ?? {}) as Frame });
  }

  /** A frame without corr gets its errors alone. */
  #answer(s: HubStep, answer: Frame): void {
    const to = s.to === undefined ? this.#last : this.#named.get(s.to);
    if (!to) throw new Error("there is no frame to answer");
    const full = this.#vars.fill(answer) as Frame;
    if (to.corr !== undefined) full.corr = to.corr;
    else if (full.op === "OK") return;
    this.#open().say(full);
  }

  /** What came and no step has taken. */
  unread(): string[] {
    const left = this.arrivals.length > 0 ? [`${this.arrivals.length} connections`] : [];
    return [...left, ...this.#unreadFrames()];
  }

  #unreadFrames(): string[] { return (this.#socket?.frames.splice(0) ?? []).map((f) => `the frame ${show(f)}`); }
}

export const hello: Frame = { op: "OK", hub: "scripted", version: "9.9", protocol: 1, durability: "sync",
  limits: { max_frame_bytes: 1310720, max_payload_bytes: 1048576, max_subscriptions: 128 } };

export function frameOf(g: Gift): Frame {
  return {
    op: "EVENT", topic: g.to ?? g.topic, ...(g.group === undefined ? {} : { group: g.group }),
    event: { offset: g.offset, ts: 1_800_000_000_000 + g.offset, id: g.id, topic: g.topic, partition: 0, ...(g.key === undefined ? {} : { key: g.key }), payload: g.payload === undefined ? 1 : g.payload },
    ...(g.ctx ? { ctx: g.ctx } : {}),
  };
}

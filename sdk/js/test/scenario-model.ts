import { frameOf, hello, type Frame, type Value } from "./scenario-hub.ts";
import type { CallEvent } from "./scenario-program.ts";

interface Lease { serial: number; attempt: number; held: boolean }
interface Sub { topic: string; group: string | undefined; paused: boolean; cursor: number }
interface Producer { epoch: number; seq: number; answers: Map<number, Frame> }

const refused = (code: string): Frame => ({ op: "ERR", code, msg: "so it is" });
const text = (v: Value | undefined): string | undefined => typeof v === "string" ? v : undefined;
const members = (v: Value | undefined): Frame => (v ?? {}) as Frame;

/**
 * What a hub does for one client, as far as the end of a scenario depends on it: a log in which ids are once,
 * numbers of producers, groups with leases that end with their connection, and tails that go on at their
 * places. It is told frames and returns frames. client/scenariomodel_test.go is the same in Go.
 */
export class ModelHub {
  #log = new Map<string, { id: string; offset: number; key: string | undefined; payload: Value }[]>();
  #acked = new Set<string>();
  #leases = new Map<string, Lease>();
  #subs: Sub[] = [];
  #scheduled = new Set<string>();
  #producers = new Map<string, Producer>();
  #producer: Producer | undefined;
  #serial = 0;

  constructor(seed: readonly CallEvent[]) {
    for (const e of seed) this.#events(e.topic).push({ id: e.id ?? "", offset: this.#events(e.topic).length + 1, key: e.key, payload: e.payload ?? 1 });
  }

  #events(topic: string) {
    const list = this.#log.get(topic) ?? [];
    this.#log.set(topic, list);
    return list;
  }

  /** Ends the connection: leases go back, subscriptions are forgotten. */
  lost(): void {
    this.#subs = [];
    this.#producer = undefined;
    for (const l of this.#leases.values()) l.held = false;
  }

  /** Acts on a frame and returns what is sent, the answer first. */
  take(f: Frame): Frame[] {
    const answer: Frame = { ...this.#act(f), ...(f.corr === undefined ? {} : { corr: f.corr }) };
    const answered = f.corr !== undefined || answer.op === "ERR" || f.op === "AUTH";
    return [...(answered ? [answer] : []), ...this.#pump()];
  }

  #act(f: Frame): Frame {
    const topic = text(f.topic) ?? "", group = text(f.group);
    switch (f.op) {
      case "AUTH": return this.#auth(f);
      case "PUBLISH": return this.#publishNumbered(f);
      case "SUBSCRIBE": return this.#subscribe(f, topic, group);
      case "UNSUBSCRIBE": case "PAUSE": case "RESUME": return this.#change(f.op, topic, group);
      case "ACK": case "NACK": case "MODACK": return this.#settle(f, topic, group ?? "");
      case "CANCEL": return this.#scheduled.delete(`${topic}/${text(f.id) ?? ""}`) ? { op: "OK" } : refused("unknown_id");
      default: return refused("unsupported_op");
    }
  }

  #auth(f: Frame): Frame {
    const id = text(members(f.producer).id);
    if (id === undefined) return hello;
    const p = this.#producers.get(id) ?? { epoch: 0, seq: 0, answers: new Map<number, Frame>() };
    this.#producers.set(id, p);
    this.#producer = p;
    return { ...hello, producer: { id, epoch: ++p.epoch, born: 1, seq: p.seq, window: 4096 } };
  }

  /** A number that was used gets the answer that it had. */
  #publishNumbered(f: Frame): Frame {
    const publish = (): Frame => Array.isArray(f.events) ? this.#add(f.events as Frame[], true) : this.#add([f], false);
    if (typeof f.seq !== "number") return publish();
    const p = this.#producer;
    if (!p || f.seq > p.seq + 1) return refused("bad_sequence");
    if (f.seq > p.seq) {
      p.seq = f.seq;
      p.answers.set(f.seq, publish());
    }
    return p.answers.get(f.seq) ?? refused("bad_sequence");
  }

  /** Publishes events as one step. */
  #add(list: Frame[], isBatch: boolean): Frame {
    const ids: string[] = [], offsets: number[] = [], duplicates: number[] = [];
    for (const [i, e] of list.entries()) {
      const topic = text(e.topic) ?? "", opts = members(e.opts), log = this.#events(topic), key = text(opts.key);
      const id = text(opts.id) ?? `hub-${topic}-${log.length + 1}`;
      if (Number(opts.delay_ms) > 0) {
        this.#scheduled.add(`${topic}/${id}`);
        return { op: "OK", id, deliver_at: 1_800_003_600_000 };
      }
      let offset = log.findIndex((one) => one.id === id) + 1;
      if (offset > 0) duplicates.push(i);
      else {
        const newest = log.findLast((one) => one.key === key)?.offset ?? 0;
        if (opts.expect !== undefined && members(opts.expect).key_offset !== newest) return { ...refused("conflict"), present: newest };
        offset = log.push({ id, offset: log.length + 1, key, payload: e.payload ?? null });
      }
      ids.push(id);
      offsets.push(offset);
    }
    if (isBatch) return { op: "OK", ids, offsets, ...(duplicates.length > 0 ? { duplicates } : {}) };
    return { op: "OK", id: ids[0] ?? "", offset: offsets[0] ?? 0, ...(duplicates.length > 0 ? { duplicate: true } : {}) };
  }

  #find(topic: string, group: string | undefined): Sub | undefined { return this.#subs.find((s) => s.topic === topic && s.group === group); }

  #subscribe(f: Frame, topic: string, group: string | undefined): Frame {
    if (this.#find(topic, group)) return refused("already_subscribed");
    const s: Sub = { topic, group, paused: false, cursor: 0 }, opts = members(f.opts);
    this.#subs.push(s);
    if (group !== undefined) return { op: "OK" };
    const known = text(opts.known) ?? `k${this.#events(topic).length}`;
    if (opts.from !== "earliest") s.cursor = Number(known.slice(1));
    if (Array.isArray(opts.places) && opts.places.length > 0) s.cursor = Number(members(opts.places[0]).offset);
    return { op: "OK", known };
  }

  #change(op: string, topic: string, group: string | undefined): Frame {
    const s = this.#find(topic, group);
    if (!s) return refused("not_subscribed");
    if (op !== "UNSUBSCRIBE") s.paused = op === "PAUSE";
    else {
      this.#subs = this.#subs.filter((other) => other !== s);
      for (const [name, l] of this.#leases) if (name.startsWith(`${topic}/${group ?? ""}/`)) l.held = false;
    }
    return { op: "OK" };
  }

  /** Applies a verdict. One on a lease that was followed by another has no effect. */
  #settle(f: Frame, topic: string, group: string): Frame {
    const stale: number[] = [];
    for (const [i, lease] of (Array.isArray(f.lease) ? f.lease : [f.lease]).entries()) {
      const [, offset = "", serial = ""] = String(lease).split("-");
      const name = `${topic}/${group}/${this.#events(topic)[Number.parseInt(offset, 36) - 1]?.id ?? ""}`, l = this.#leases.get(name);
      if (l?.serial !== Number.parseInt(serial, 36) || this.#acked.has(name)) stale.push(i);
      else if (f.op === "ACK") {
        this.#acked.add(name);
        if (Array.isArray(f.publish)) return this.#add(f.publish as Frame[], true);
      } else if (f.op === "NACK") l.held = false;
    }
    if (stale.length === 0) return { op: "OK" };
    if (f.publish !== undefined) return refused("lease_lost");
    return f.op === "MODACK" ? refused("unknown_id") : { op: "OK", stale: true, stale_at: stale };
  }

  /** The deliveries that are due. */
  #pump(): Frame[] {
    const frames: Frame[] = [];
    for (const s of this.#subs) {
      for (const e of s.paused ? [] : this.#events(s.topic)) {
        const gift = { topic: s.topic, id: e.id, offset: e.offset, payload: e.payload, ...(e.key === undefined ? {} : { key: e.key }) };
        if (s.group === undefined) {
          if (e.offset <= s.cursor) continue;
          s.cursor = e.offset;
          frames.push(frameOf(gift));
          continue;
        }
        const name = `${s.topic}/${s.group}/${e.id}`, l = this.#leases.get(name) ?? { serial: 0, attempt: 0, held: false };
        if (this.#acked.has(name) || l.held) continue;
        this.#leases.set(name, l);
        l.serial = ++this.#serial;
        l.held = true;
        l.attempt++;
        const lease = `a-${e.offset.toString(36)}-${l.serial.toString(36)}`;
        frames.push(frameOf({ ...gift, group: s.group, ctx: { attempt: l.attempt, max_attempts: 99, ack_deadline_ms: 30_000, lease, epoch: 5 } }));
      }
    }
    return frames;
  }

  /** What the end of a scenario is compared with. */
  state(): Frame {
    const acked: Record<string, Value[]> = {};
    for (const [topic, events] of this.#log) {
      for (const e of events) {
        for (const name of this.#acked) {
          const [of = "", group = "", id] = name.split("/");
          if (of === topic && id === e.id) (acked[`${of}/${group}`] ??= []).push(e.payload);
        }
      }
    }
    return { log: Object.fromEntries([...this.#log].map(([topic, events]) => [topic, events.map((e) => e.payload)])), acked, scheduled: this.#scheduled.size };
  }
}

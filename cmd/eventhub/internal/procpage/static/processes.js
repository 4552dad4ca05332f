// What the page knows of the processes: the newest state of each key of the topic, and its last samples.

/** How many samples a sparkline has at most. */
export const SAMPLES = 60;
/** After so many ms without a heartbeat a row begins to fade. */
export const QUIET_MS = 5_000;

/** CPU and memory of one process by the offsets of its states, the oldest first. */
export class Samples {
  offsets = [];
  cpu = [];
  mem = [];

  /** Adds a sample, wherever its offset belongs; one that is there already changes nothing. */
  add(offset, cpu, mem) {
    let at = this.offsets.length;
    while (at > 0 && this.offsets[at - 1] > offset) at--;
    if (at > 0 && this.offsets[at - 1] === offset) return false;
    if (at === 0 && this.offsets.length >= SAMPLES) return false;
    this.offsets.splice(at, 0, offset);
    this.cpu.splice(at, 0, cpu);
    this.mem.splice(at, 0, mem);
    if (this.offsets.length > SAMPLES) {
      this.offsets.shift();
      this.cpu.shift();
      this.mem.shift();
    }
    return true;
  }
}

/** Reads a state; whoever may publish may publish anything, so undefined is an answer too. */
export function readState(payload) {
  if (typeof payload !== "object" || payload === null) return undefined;
  const { name, host, pid, cpu_pct: cpu, mem_mb: mem, last_seen_ts: seen, status } = payload;
  if (typeof name !== "string" || typeof host !== "string" || (status !== "alive" && status !== "stale")) return undefined;
  if (![pid, cpu, mem, seen].every(Number.isFinite)) return undefined;
  return { name, host, pid, cpu, mem, seen, status };
}

export class Processes {
  /** By key. */
  all = new Map();
  /** The highest offset that was seen. */
  head = 0;
  /** How many events came over the tail. */
  events = 0;
  /** What came while the state is being read, by key. */
  #since;

  /** Takes an event of the tail. */
  apply(event) {
    this.events++;
    if (event.key === undefined) return;
    this.#since?.set(event.key, event);
    this.#put(event);
  }

  #put(event) {
    const { key, offset, payload } = event;
    if (offset > this.head) this.head = offset;
    const known = this.all.get(key);
    if (known && known.offset > offset) return;
    if (payload === null) {
      this.all.delete(key);
      return;
    }
    const state = readState(payload);
    if (!state) return;
    const process = Object.assign(known ?? { key, find: "", samples: new Samples(), version: 0 }, state, { offset });
    if (process.find === "") process.find = `${state.host} ${state.name} ${state.pid}`.toLowerCase();
    if (state.status === "alive") process.samples.add(offset, state.cpu, state.mem);
    process.version++;
    this.all.set(key, process);
  }

  /** The state is about to be read: what comes from now on may be newer than it. */
  begin() { this.#since = new Map(); }

  /**
   * The state was read: these events, and what has come since begin, are all that there is. A row that is
   * in neither was removed, or the hub has another log now.
   */
  settle(events) {
    const newest = new Map(events.map((e) => [e.key, e]));
    for (const [key, e] of this.#since ?? []) {
      if ((newest.get(key)?.offset ?? 0) < e.offset) newest.set(key, e);
    }
    const before = this.all;
    this.#since = undefined;
    this.all = new Map();
    this.head = 0;
    for (const [key, event] of newest) {
      const old = before.get(key);
      // An offset above that of the newest event is of another log, whose samples say nothing here.
      if (old && old.offset <= event.offset) this.all.set(key, old);
      this.#put(event);
    }
  }

  /** Adds a sample of the past to a process that is known. */
  past(event) {
    const process = this.all.get(event.key);
    const state = readState(event.payload);
    if (!process || state?.status !== "alive" || event.offset >= process.offset) return;
    if (process.samples.add(event.offset, state.cpu, state.mem)) process.version++;
  }
}

const text = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const byName = (a, b) => text(a.name.toLowerCase(), b.name.toLowerCase());

/** The orders, all from the least to the most. */
const orders = {
  name: byName,
  pid: (a, b) => a.pid - b.pid,
  host: (a, b) => text(a.host, b.host) || byName(a, b),
  cpu: (a, b) => a.cpu - b.cpu || a.mem - b.mem,
  mem: (a, b) => a.mem - b.mem,
  status: (a, b) => text(a.status, b.status),
  seen: (a, b) => b.seen - a.seen, // by the time since then
};

/** Which processes are shown, in which order. */
export function select(processes, { words, status, column, descending }) {
  const list = [];
  for (const p of processes) {
    if ((status === "" || p.status === status) && words.every((w) => p.find.includes(w))) list.push(p);
  }
  const compare = orders[column], sign = descending ? -1 : 1;
  // The last figures of a process that has ended are no figures of now: they come after all others.
  const figures = column === "cpu" || column === "mem";
  return list.sort((a, b) => (figures ? Number(a.status === "stale") - Number(b.status === "stale") : 0) || sign * compare(a, b) || text(a.key, b.key));
}

/** 0 is heard of, 1 is silent, 2 is stale. */
export function fading(p, now) {
  if (p.status === "stale") return 2;
  return now - p.seen >= QUIET_MS ? 1 : 0;
}

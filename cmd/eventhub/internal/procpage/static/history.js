// The history of one process: a replay of the topic, backwards in parts, so that the newest states are there first.

import { age, count, memory, pathOf, percent, rangeOf, time } from "./draw.js";
import { replayFrom } from "./feed.js";
import { readState } from "./processes.js";

/** Events of one part of the replay, and how many parts are read before somebody asks for more. */
const PART = 5_000;
const PARTS = 10;
/** A history with so many states is one. */
const ENOUGH = 240;
/** States that are listed; the charts have all. */
const LISTED = 120;

const get = (id) => document.getElementById(id);

function cell(row, text, className) {
  const td = row.insertCell();
  td.textContent = text;
  if (className) td.className = className;
  return td;
}

export class History {
  #topic;
  #hub;
  #processes;
  #dialog = get("history");
  #key = "";
  #states = []; // by offset, the oldest first
  #next = 0; // the first offset that was read
  #replayed = 0;
  #reading = new AbortController();
  #frame = 0;

  /** `hub` gives the client of now, or undefined. */
  constructor(topic, hub, processes) {
    this.#topic = topic;
    this.#hub = hub;
    this.#processes = processes;
    get("history-close").addEventListener("click", () => { this.#dialog.close(); });
    get("earlier").addEventListener("click", () => { void this.#read(); });
    this.#dialog.addEventListener("click", (e) => { if (e.target === this.#dialog) this.#dialog.close(); }); // beside it
    this.#dialog.addEventListener("close", () => {
      this.#key = "";
      this.#reading.abort();
    });
  }

  open(key) {
    const process = this.#processes.all.get(key);
    if (!process) return;
    this.#key = key;
    this.#states = [];
    this.#replayed = 0;
    this.#next = this.#processes.head + 1;
    get("history-name").textContent = process.name;
    get("history-where").textContent = `pid ${process.pid} on ${process.host}`;
    this.#draw();
    if (!this.#dialog.open) this.#dialog.showModal();
    void this.#read();
  }

  /** Takes an event of the tail: the history of a process that lives grows. */
  event(e) {
    if (e.key !== this.#key || this.#key === "") return;
    this.#add(e);
    this.#soon();
  }

  /** The state was read anew. Where the hub has another log now, the states of before are of no log any more. */
  changed() {
    if (this.#key !== "" && (this.#states.at(-1)?.offset ?? 0) > this.#processes.head) this.open(this.#key);
  }

  #soon() {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.#draw(); });
  }

  #add(e) {
    const state = e.payload === null ? { status: "removed" } : readState(e.payload);
    if (!state) return;
    let at = this.#states.length;
    while (at > 0 && this.#states[at - 1].offset > e.offset) at--;
    if (at > 0 && this.#states[at - 1].offset === e.offset) return; // by the tail and by the replay
    this.#states.splice(at, 0, { ...state, offset: e.offset, ts: e.committed_ts ?? e.ts });
  }

  /** Reads parts, each before the last one, until there is enough. */
  async #read() {
    this.#reading.abort();
    this.#reading = new AbortController();
    const { signal } = this.#reading;
    const enough = this.#states.length + ENOUGH;
    get("earlier").hidden = true;
    try {
      for (let part = 0; part < PARTS && this.#next > 1 && this.#states.length < enough; part++) await this.#part(signal);
    } catch (why) {
      if (signal.aborted) return;
      get("replayed").textContent = `The replay failed: ${why.message}`;
      get("earlier").hidden = false;
      return;
    }
    get("earlier").hidden = this.#next <= 1;
    this.#soon();
  }

  async #part(signal) {
    const hub = this.#hub();
    if (!hub) throw new Error("there is no connection to the hub");
    const end = this.#next, from = Math.max(1, end - PART);
    let first = from;
    const found = [];
    for await (const e of replayFrom(hub, this.#topic, from, signal, () => { first = 1; })) {
      if (e.offset >= end) break;
      this.#replayed++;
      if (e.key === this.#key) found.push(e);
      if (this.#replayed % 1000 === 0) this.#soon();
    }
    for (const e of found.reverse()) this.#add(e);
    this.#next = first;
    this.#soon();
  }

  #draw() {
    const states = this.#states, lived = states.filter((s) => s.status === "alive");
    const begin = lived[0]?.ts ?? 0, end = lived.at(-1)?.ts ?? 0;
    const at = (i) => (end > begin ? (lived[i].ts - begin) / (end - begin) : 0);
    this.#chart("cpu", lived.map((s) => s.cpu), true, at, (n) => `${percent(n)} %`);
    this.#chart("mem", lived.map((s) => s.mem), false, at, memory);
    get("span-from").textContent = lived.length > 0 ? time(begin) : "";
    get("span-to").textContent = lived.length > 1 ? `${time(end)} (${age(end - begin)})` : "";
    get("replayed").textContent = `${count(states.length)} states of ${count(this.#replayed)} events replayed.`;
    const rows = states.slice(-LISTED).reverse().map((s) => {
      const row = document.createElement("tr");
      row.className = s.status;
      cell(row, time(s.ts));
      cell(row, s.status);
      cell(row, s.cpu === undefined ? "" : percent(s.cpu), "num");
      cell(row, s.mem === undefined ? "" : memory(s.mem), "num");
      cell(row, count(s.offset), "num");
      return row;
    });
    get("events").replaceChildren(...rows);
  }

  #chart(kind, values, fromZero, at, say) {
    const range = values.length > 0 ? rangeOf(values, fromZero) : [0, 1];
    const [line, area] = pathOf(values, range, 600, 100, at);
    const chart = get(`${kind}-chart`);
    chart.querySelector(".line").setAttribute("d", line);
    chart.querySelector(".area").setAttribute("d", area);
    let low = Infinity, high = -Infinity;
    for (const v of values) {
      if (v < low) low = v;
      if (v > high) high = v;
    }
    get(`${kind}-range`).textContent = values.length === 0 ? "" : `${say(low)} to ${say(high)}, now ${say(values.at(-1))}`;
  }
}

// The table. It has elements for the rows that can be seen and no others: a row that scrolls out on one side is
// used again on the other, and an update writes the cells whose text has changed.

import { age, memory, pathOf, percent, rangeOf } from "./draw.js";
import { fading, SAMPLES, select } from "./processes.js";

const ROW = 34;
/** Rows above and below what can be seen, for a scroll that is faster than a frame. */
const SPARE = 4;
/** The order is made anew at most so often, and not while somebody points at a row or has the focus in one. */
const ORDER_MS = 1_000;
const HOLD_MS = 2_000;
const SPARK = { width: 90, height: 22 };

/** Columns: what the header says, and which order a first click means. */
const columns = [
  { id: "name", label: "Process", descending: false },
  { id: "pid", label: "PID", descending: false },
  { id: "host", label: "Host", descending: false },
  { id: "cpu", label: "CPU", descending: true },
  { id: "mem", label: "Memory", descending: true },
  { id: "status", label: "State", descending: false },
  { id: "seen", label: "Last seen", descending: false },
];

const svg = "http://www.w3.org/2000/svg";

function element(name, className, parent) {
  const e = document.createElement(name);
  if (className) e.className = className;
  parent?.append(e);
  return e;
}

/** A text that is written only when it changes. */
class Text {
  #node;
  constructor(parent) {
    this.#node = document.createTextNode("");
    parent.append(this.#node);
  }

  set(value) { if (this.#node.data !== value) this.#node.data = value; }
}

class Spark {
  #line;
  #area;
  constructor(parent, kind) {
    const root = document.createElementNS(svg, "svg");
    root.setAttribute("class", `spark ${kind}`);
    root.setAttribute("viewBox", `0 0 ${SPARK.width} ${SPARK.height}`);
    root.setAttribute("preserveAspectRatio", "none");
    root.setAttribute("aria-hidden", "true");
    this.#area = document.createElementNS(svg, "path");
    this.#line = document.createElementNS(svg, "path");
    this.#area.setAttribute("class", "area");
    this.#line.setAttribute("class", "line");
    root.append(this.#area, this.#line);
    parent.append(root);
  }

  draw(values, fromZero) {
    // The newest sample is always on the right.
    const skip = SAMPLES - values.length;
    const [line, area] = pathOf(values, rangeOf(values, fromZero), SPARK.width, SPARK.height, (i) => (skip + i) / (SAMPLES - 1));
    this.#line.setAttribute("d", line);
    this.#area.setAttribute("d", area);
  }
}

/** The elements of one row, for whichever process is there. */
class Slot {
  key = "";
  #row;
  #index = -1;
  #drawn = "";
  #texts = {};
  #cpu;
  #mem;

  constructor(body) {
    this.#row = element("div", "row", body);
    this.#row.hidden = true;
    this.#row.setAttribute("role", "row");
    const cell = (id) => {
      const c = element("div", `cell ${id}`, this.#row);
      c.setAttribute("role", "cell");
      return c;
    };
    this.button = element("button", "", cell("name"));
    this.button.type = "button";
    this.#texts.name = new Text(this.button);
    for (const id of ["pid", "host"]) this.#texts[id] = new Text(cell(id));
    const cpu = cell("cpu"), mem = cell("mem");
    this.#cpu = new Spark(cpu, "cpu");
    this.#texts.cpu = new Text(element("span", "", cpu));
    this.#mem = new Spark(mem, "mem");
    this.#texts.mem = new Text(element("span", "", mem));
    for (const id of ["status", "seen"]) this.#texts[id] = new Text(element("span", "", cell(id)));
  }

  get element() { return this.#row; }

  show(p, index, now) {
    if (index !== this.#index) {
      this.#index = index;
      this.#row.style.transform = `translateY(${index * ROW}px)`;
      this.#row.setAttribute("aria-rowindex", String(index + 2));
      this.#row.classList.toggle("odd", index % 2 === 1);
      this.#row.hidden = false;
    }
    const fade = String(fading(p, now));
    if (this.#row.dataset.fade !== fade) this.#row.dataset.fade = fade;
    this.#texts.seen.set(age(now - p.seen));
    const drawn = `${p.version} ${p.key}`;
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    if (this.key !== p.key) {
      this.key = p.key;
      this.button.title = p.key;
      this.#texts.name.set(p.name);
      this.#texts.pid.set(String(p.pid));
      this.#texts.host.set(p.host);
    }
    this.#texts.cpu.set(percent(p.cpu));
    this.#texts.mem.set(memory(p.mem));
    this.#texts.status.set(p.status);
    this.#cpu.draw(p.samples.cpu, true);
    this.#mem.draw(p.samples.mem, false);
  }

  hide() {
    if (this.#index === -1) return;
    this.#index = -1;
    this.key = this.#drawn = "";
    this.#row.hidden = true;
  }
}

export class Table {
  /** The processes that are shown, in order, and how many there were when the order was made. */
  shown = [];
  total = 0;
  #processes;
  #open;
  #slots = [];
  #heads = new Map();
  #choice = { words: [], status: "", column: "cpu", descending: true };
  #ordered = -Infinity;
  #pointed = -Infinity;
  #frame = 0;
  #body = document.getElementById("body");
  #table = document.getElementById("table");
  #scroller = document.getElementById("scroller");

  /** `open` is called with the key of a process that was chosen. */
  constructor(processes, open) {
    this.#processes = processes;
    this.#open = open;
    this.#header();
    this.#scroller.addEventListener("scroll", () => { this.draw(); }, { passive: true });
    new ResizeObserver(() => { this.draw(); }).observe(this.#scroller);
    this.#body.addEventListener("pointermove", (e) => { if (e.pointerType === "mouse") this.#pointed = performance.now(); }, { passive: true });
    this.#body.addEventListener("pointerleave", () => { this.#pointed = -Infinity; });
    this.#body.addEventListener("click", (e) => {
      const row = e.target.closest(".row");
      const slot = this.#slots.find((s) => s.element === row);
      if (slot?.key) this.#open(slot.key);
    });
    this.#body.addEventListener("keydown", (e) => { this.#key(e); });
  }

  #header() {
    const head = document.getElementById("head");
    for (const c of columns) {
      const cell = element("div", `cell ${c.id}`, head);
      cell.setAttribute("role", "columnheader");
      const button = element("button", "", cell);
      button.type = "button";
      button.append(c.label, element("span", "arrow"));
      button.addEventListener("click", () => {
        const { column, descending } = this.#choice;
        this.#choose({ column: c.id, descending: column === c.id ? !descending : c.descending });
      });
      this.#heads.set(c.id, cell);
    }
    this.#mark();
  }

  #mark() {
    const { column, descending } = this.#choice;
    for (const [id, cell] of this.#heads) {
      if (id === column) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  /** Shows the processes that have all of these words in host, name or pid. */
  filter(text) { this.#choose({ words: text.toLowerCase().split(/\s+/).filter((w) => w !== "") }); }

  /** Shows the processes of a status, or all for "". */
  only(status) { this.#choose({ status }); }

  #choose(choice) {
    Object.assign(this.#choice, choice);
    this.#mark();
    this.#ordered = -Infinity;
    this.#pointed = -Infinity;
    this.#scroller.scrollTop = 0;
    this.draw();
  }

  /** There are other processes now: the next frame has them. */
  renew() {
    this.#ordered = Math.min(this.#ordered, -ORDER_MS);
    this.draw();
  }

  /** Whether the order stays as it is, because somebody is about to choose a row. */
  get held() {
    const focus = document.activeElement;
    return performance.now() - this.#pointed < HOLD_MS || (this.#body.contains(focus) && focus.matches(":focus-visible"));
  }

  /** Draws with the next frame, once however often it is called. */
  draw() {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.#render(); });
  }

  #order(now) {
    if (now - this.#ordered < ORDER_MS) return;
    const list = select(this.#processes.all.values(), this.#choice);
    if (this.#ordered !== -Infinity && this.held) {
      const place = new Map(this.shown.map((p, i) => [p.key, i]));
      const at = (p) => place.get(p.key) ?? Infinity;
      list.sort((a, b) => (at(a) === at(b) ? 0 : at(a) - at(b))); // new ones at the end, in their order
    }
    this.shown = list;
    this.total = this.#processes.all.size;
    this.#ordered = now;
  }

  #render() {
    this.#order(performance.now());
    const now = Date.now(), total = this.shown.length;
    this.#body.style.height = `${total * ROW}px`;
    this.#table.setAttribute("aria-rowcount", String(total + 1));
    const first = Math.max(0, Math.floor(this.#scroller.scrollTop / ROW) - SPARE);
    const seen = Math.ceil(this.#scroller.clientHeight / ROW) + 2 * SPARE;
    while (this.#slots.length < seen) this.#slots.push(new Slot(this.#body));
    const size = this.#slots.length;
    const used = new Set();
    for (let i = first; i < Math.min(first + seen, total); i++) {
      // A row that stays in sight stays in its elements, and keeps the focus.
      used.add(i % size);
      this.#slots[i % size].show(this.shown[i], i, now);
    }
    for (let i = 0; i < size; i++) if (!used.has(i)) this.#slots[i].hide();
    this.after?.();
  }

  #key(e) {
    const slot = this.#slots.find((s) => s.button === document.activeElement);
    const at = slot ? this.shown.findIndex((p) => p.key === slot.key) : -1;
    if (e.key === "Escape") document.activeElement.blur(); // lets the order go
    const page = Math.max(1, Math.floor(this.#scroller.clientHeight / ROW) - 2), last = this.shown.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: last }[e.key];
    if (to === undefined || at < 0) return;
    e.preventDefault();
    const index = Math.min(last, Math.max(0, to));
    const top = index * ROW, { scrollTop, clientHeight } = this.#scroller;
    if (top < scrollTop) this.#scroller.scrollTop = top;
    else if (top + 2 * ROW > scrollTop + clientHeight) this.#scroller.scrollTop = top + 2 * ROW - clientHeight; // the header covers a row
    this.#render();
    this.#slots[index % this.#slots.length].button.focus({ preventScroll: true });
  }
}

// The page: what it says of the connection, and what its controls do.

import { age, count } from "./draw.js";
import { Feed } from "./feed.js";
import { History } from "./history.js";
import { Processes } from "./processes.js";
import { Table } from "./table.js";

const get = (id) => document.getElementById(id);

const processes = new Processes();
const answer = await fetch("hub.json");
if (!answer.ok) throw new Error(`hub.json: ${answer.status} ${answer.statusText}`);
const config = await answer.json();

/** What is known of the connection, and since when (as performance.now). */
const link = { state: "connecting", since: performance.now() };

const feed = new Feed(config, processes, {
  link(state, why) {
    if (state !== link.state) Object.assign(link, { state, since: performance.now() });
    get("link").title = why?.message ?? config.hub;
    sayWhy(state === "denied" ? undefined : why);
    get("token-form").hidden = state !== "denied";
    if (state === "denied") {
      get("token-why").textContent = why.message;
      get("token").focus();
    }
    sayLink();
  },
  event(e) {
    history.event(e);
    table.draw();
  },
  changed() {
    table.renew();
    history.changed();
  },
});
const history = new History(config.topic, () => feed.hub, processes);
const table = new Table(processes, (key) => { history.open(key); });
table.after = sayShown;

/** A hub that is not there is nothing to explain; all else is. */
function sayWhy(why) {
  const unknown = why !== undefined && !["unreachable", "shutting_down"].includes(why.code);
  get("why").hidden = !unknown;
  if (unknown) get("why").textContent = `${why.code ?? why.name}: ${why.message}`;
}

function sayLink() {
  const for_ = age(performance.now() - link.since);
  document.documentElement.dataset.link = link.state;
  get("link").dataset.state = link.state;
  const text = {
    connecting: `Connecting to ${config.hub}… ${for_}`,
    open: "Live",
    away: `Reconnecting… ${for_}`,
    denied: "Signed out",
  }[link.state];
  if (get("link-text").textContent !== text) get("link-text").textContent = text;
}

let events = 0, second = performance.now();

/** Once a second: what grows by itself. */
function tick() {
  const now = performance.now();
  const rate = Math.round((processes.events - events) / (now - second) * 1000);
  events = processes.events;
  second = now;
  let alive = 0;
  for (const p of processes.all.values()) if (p.status === "alive") alive++;
  get("counts").textContent = `${count(alive)} alive · ${count(processes.all.size - alive)} stale · ${count(rate)} events/s`;
  sayLink();
  table.draw();
}

function sayShown() {
  const { total } = table, shown = table.shown.length;
  const text = shown === total ? `${count(total)} processes` : `${count(shown)} of ${count(total)} processes`;
  if (get("shown").textContent !== text) get("shown").textContent = text;
  get("held").hidden = !table.held;
  get("empty").hidden = shown > 0;
  if (shown === 0) get("empty").textContent = total > 0 ? "No process is like that." : link.state === "open" ? "No heartbeats yet." : "";
}

get("filter").addEventListener("input", (e) => { table.filter(e.target.value); });
get("filter").addEventListener("keydown", (e) => {
  if (e.key !== "Escape" || e.target.value === "") return;
  e.target.value = "";
  table.filter("");
});
get("status").addEventListener("change", (e) => { table.only(e.target.value); });
get("token-form").addEventListener("submit", (e) => {
  e.preventDefault();
  feed.signIn(get("token").value);
  get("token").value = "";
});

setInterval(tick, 1_000);
tick();
void feed.run();

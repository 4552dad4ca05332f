// The topics: all of them as a window, and one with its events, its tail, its state and its settings.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/ui.js";
import { get, path, post, send } from "./api.js";
import { EventView } from "./event.js";
import { Ask, Command, Note, useJSON, useKept, useLater, useLoad, useRights, Window } from "./parts.js";
import { ago, bytes, command, count, longArgument, plural, preview, rate, settingsCommand, time, to } from "./words.js";

/** How many rows of the list are asked for: as many as the hub shows of a list of topics. */
const mostRows = 60;

/** The hub keeps the list of all names for so long, in ms: a new topic is not in it before. */
const namesFor = 5_500;

/** Calls again some time after the number of topics has changed that were published to. */
function useOthers(n, again) {
  const had = useRef(n), timer = useRef(undefined);
  useEffect(() => {
    if (n === undefined) return;
    if (had.current !== undefined && n !== had.current) timer.current ??= setTimeout(() => { timer.current = undefined; again(); }, namesFor);
    had.current = n;
  }, [n]);
  useEffect(() => () => { clearTimeout(timer.current); }, []);
}

export function Topics({ live }) {
  const [search, setSearch] = useKept("topics", "");
  const [range, setRange] = useState({ from: 0, rows: 30 });
  const later = useLater(search, 100);
  const { value: begin } = useLoad((signal) => get("/console/topics", { first: true, rows: mostRows }, signal), []);
  const { value: all, problem, loading, again } = useLoad((signal) => get("/console/topics", { search: later, from: range.from, rows: mostRows }, signal), [later, range.from]);
  useOthers(live.message?.totals?.topics, again);
  const found = all ?? (problem ? undefined : begin); // the first rows are there before all are counted
  const total = found?.total ?? 0, from = found?.from ?? 0, rows = found?.rows ?? [];
  const names = rows.map((t) => t.topic);
  useEffect(() => { live.show({ view: "topics", topic: names }); }, [names.join(" ")]);
  const now = useMemo(() => new Map((live.message?.view?.rows ?? []).map((r) => [r.topic, r])), [live.message]);
  return html`<h1>Topics</h1>
    <div class="tools" role="search">
      <label><span class="hidden">Search topics</span><input id="search" type="search" placeholder="Search topics" autocomplete="off" spellcheck="false" value=${search} onInput=${(e) => { setSearch(e.target.value); setRange({ ...range, from: 0 }); }} /></label>
      <p class="dim" role="status">${all ? plural(total, "topic") : loading ? "…" : ""}</p>
    </div>
    <${Note} problem=${problem} />
    <${Window} label="Topics" total=${total} from=${from} rows=${rows} empty=${found ? "No topic is like that." : loading ? "…" : ""}
      move=${(first, n) => { setRange((r) => (Math.abs(r.from - first) < 5 && r.rows === n && (first !== 0 || r.from === 0) ? r : { from: first, rows: n })); }}
      head=${html`<th scope="col">Topic</th><th scope="col" class="num head">Newest offset</th><th scope="col" class="num">Published/s</th><th scope="col" class="num wide">Bytes/s</th><th scope="col" class="num wide">Size</th><th scope="col" class="num wide">Groups</th><th scope="col" class="num wide letters">Newest event</th>`}
      row=${(t, at) => {
        const r = { ...t, ...now.get(t.topic) };
        return html`<tr key=${t.topic} aria-rowindex=${at}><th scope="row" class="name"><a href=${to("topics", t.topic)}>${t.topic}</a></th>
          <td class="num">${count(r.head)}</td><td class="num">${rate(r.published)}</td><td class="num wide">${bytes(r.bytes)}</td><td class="num wide">${size(r)}</td><td class="num wide">${count(r.groups)}</td><td class="num wide">${ago(r.head_ts, live.message?.ts)}</td></tr>`;
      }} />`;
}

/** How much a topic keeps, as far as the hub has counted. */
const size = (r) => `${bytes(r.size_bytes)}${r.size_at_least ? "+" : ""}`;

/** Events as a table; each leads to itself. */
export function EventRows({ label, list, id }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table id=${id} class="events"><thead><tr>
    <th scope="col" class="num">Offset</th><th scope="col">Time</th><th scope="col" class="wide">Key</th><th scope="col">Id</th><th scope="col">Payload</th></tr></thead>
    <tbody>${list.map((e) => html`<tr key=${`${e.topic} ${e.offset}`}><td class="num">${e.offset}</td><td class="time">${time(e.committed_ts ?? e.ts)}</td><td class="wide cut">${e.key}</td>
      <td class="id"><a href=${to("topics", e.topic, "event", e.id)}>${e.id}</a></td><td class="cut payload">${e.preview ?? preview(e.payload)}</td></tr>`)}</tbody></table></div>`;
}

function Events({ topic, info }) {
  const [ask, setAsk] = useKept("events", { from: "newest", value: "", key: "", filter: "" });
  const [place, setPlace] = useKept("events-at", undefined); // {before} or {offset}, where somebody has paged
  const later = useLater(JSON.stringify(ask), 200);
  const { value: page, problem, loading } = useLoad(async (signal) => {
    const read = (at) => get("/console/events", { topic, key: ask.key, filter: ask.filter, ...at }, signal);
    const find = () => {
      if (place !== undefined) return read(place);
      switch (ask.from) {
        case "newest": return read({});
        case "earliest": return read({ from: "earliest" });
        case "id": return ask.value === "" ? { events: [] } : get(path("v1", "topics", topic, "events", ask.value), {}, signal).then((e) => ({ events: [e] }));
        default: return ask.value === "" ? { events: [] } : read({ [ask.from]: ask.from === "from_ts" ? new Date(ask.value).getTime() : ask.value });
      }
    };
    return { ...await find(), asked: later };
  }, [later, place, ask.from === "newest" && place === undefined ? info.head > 0 : 0]);
  const stale = loading || page?.asked !== JSON.stringify(ask); // what is shown is not yet what is asked for
  const list = page?.events;
  const of = (ask.key !== "" || ask.filter !== "") && page?.looked !== undefined ? `, of ${count(page.looked)} that were looked at` : "";
  const change = (part) => { setPlace(undefined); setAsk({ ...ask, ...part }); };
  return html`<section><h2 class="hidden">Events</h2>
    <form class="form" onSubmit=${(e) => { e.preventDefault(); }}>
      <label>From <select id="events-from" value=${ask.from} onChange=${(e) => { change({ from: e.target.value, value: "" }); }}>
        <option value="newest">the newest</option><option value="earliest">the first that is kept</option><option value="offset">an offset</option><option value="from_ts">a time</option><option value="after_id">after an event</option><option value="id">one event, by id</option></select></label>
      ${ask.from === "offset" && html`<label>Offset <input id="events-value" type="number" min="1" value=${ask.value} onInput=${(e) => { change({ value: e.target.value }); }} /></label>`}
      ${ask.from === "from_ts" && html`<label>Time <input id="events-value" type="datetime-local" step="1" value=${ask.value} onInput=${(e) => { change({ value: e.target.value }); }} /></label>`}
      ${["after_id", "id"].includes(ask.from) && html`<label>Id <input id="events-value" autocomplete="off" spellcheck="false" value=${ask.value} onInput=${(e) => { change({ value: e.target.value.trim() }); }} /></label>`}
      ${ask.from !== "id" && html`<label>Key <input id="events-key" autocomplete="off" spellcheck="false" value=${ask.key} onInput=${(e) => { change({ key: e.target.value }); }} /></label>
        <label class="grow">Filter (CEL) <input id="events-filter" autocomplete="off" spellcheck="false" placeholder="event.payload.total > 100.0" value=${ask.filter} onInput=${(e) => { change({ filter: e.target.value }); }} /></label>`}
    </form>
    <${Note} problem=${problem} />
    ${list && html`<p class="dim" role="status">${stale ? "…" : `${plural(list.length, "event")}${of}${page.partial ? "; there are more to look at" : ""}`}</p>
      <${EventRows} id="events" label="Events" list=${ask.from === "newest" ? [...list].reverse() : list} />
      <div class="buttons"><button type="button" disabled=${!page.before} onClick=${() => { if (!stale) setPlace({ before: page.before }); }}>Earlier</button>
        <button type="button" disabled=${!page.after} onClick=${() => { if (!stale) setPlace({ offset: page.after }); }}>Later</button></div>`}
  </section>`;
}

/** How many events of a tail the page keeps. */
const kept = 200;

/**
 * A live tail that can be paused. It comes with the live stream, once a second; what is more than a page can show
 * is left out by the hub, and counted.
 */
function Tail({ topic, live }) {
  const [ask, setAsk] = useKept("tail", { key: "", filter: "" });
  const [paused, setPaused] = useState(false);
  const none = { list: [], left: 0, begun: false };
  const [state, setState] = useState(none);
  const after = useRef(undefined); // where a tail that was paused goes on
  const later = useLater(JSON.stringify(ask), 200);
  useEffect(() => { after.current = undefined; setState(none); }, [later]);
  useEffect(() => {
    if (paused) { live.show({ view: "topic", topic }); return undefined; }
    live.show({ view: "tail", topic, ...JSON.parse(later), after: after.current });
    return live.listen(({ view, problem }) => {
      if (problem) { setState((s) => ({ ...(problem.code === "forbidden" ? none : s), problem })); return; } // another token could see them
      if (view?.topic !== topic || !view.tail) return;
      const { events: came, left = 0, after: at } = view.tail;
      const anew = after.current > at; // the topic was deleted, or it is another store
      after.current = at;
      live.goOn(at);
      setState((s) => {
        const had = anew ? none : s;
        return { begun: true, anew: anew || s.anew, left: had.left + left, list: came.length > 0 ? [...came.reverse(), ...had.list].slice(0, kept) : had.list };
      });
    });
  }, [later, paused, topic]);
  const says = live.state === "away" ? "The hub does not answer; the tail goes on by itself." : paused ? "Paused: going on, the tail continues where it stopped." : state.begun ? `Live: the newest first.${state.anew ? " The topic has begun anew; what was here of the one before is gone." : ""}` : "Connecting…";
  return html`<section><h2 class="hidden">Live tail</h2>
    <div class="form"><label>Key <input id="tail-key" autocomplete="off" spellcheck="false" value=${ask.key} onInput=${(e) => { setAsk({ ...ask, key: e.target.value }); }} /></label>
      <label class="grow">Filter (CEL) <input id="tail-filter" autocomplete="off" spellcheck="false" value=${ask.filter} onInput=${(e) => { setAsk({ ...ask, filter: e.target.value }); }} /></label>
      <button type="button" id="tail-pause" onClick=${() => { setPaused(!paused); }}>${paused ? "Go on" : "Pause"}</button></div>
    <${Note} problem=${state.problem && { code: state.problem.code, message: state.problem.detail }} />
    <p class="dim" id="tail-state" role="status">${state.problem ? "" : says}
      ${state.left > 0 && ` The topic is faster than this page shows: ${plural(state.left, "event")} ${state.left === 1 ? "was" : "were"} left out.`}</p>
    <${EventRows} id="tail" label="Live tail" list=${state.list} /></section>`;
}

/** A moment as the hub and its commands read it. A time without a zone is of the browser's zone, as all that are shown. */
function when(given) {
  const text = given.trim();
  if (/^(\d[^-]*)?$/.test(text)) return text; // an offset, or a duration
  const at = new Date(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : text);
  if (!/^\d{4}-\d\d-\d\d/.test(text) || Number.isNaN(at.getTime())) throw Object.assign(new Error(`“${text}” is no offset, no time such as 2026-01-31 15:04, and no duration such as 2h.`), { code: "bad_request" });
  return at.toISOString();
}

/** The command that prints what State shows; undefined where a moment is none. */
function stateCommand(topic, { mode, prefix, at, from, to: until }) {
  const flag = (name, value) => (value === "" ? [] : [name, value]);
  try {
    return command("state", [topic], [...flag("--prefix", prefix), ...(mode === "diff" ? ["--from", when(from) || "1970-01-01T00:00:00Z", ...flag("--to", when(until))] : flag("--at", when(at)))]);
  } catch {
    return ""; // it is said in its place
  }
}

/** The state by key, at a moment, or what has changed between two. */
function State({ topic }) {
  const [ask, setAsk] = useKept("state", { prefix: "", mode: "state", at: "", from: "", to: "" });
  const [page, setPage] = useKept("state-page", "");
  const later = useLater(JSON.stringify(ask), 200);
  const { value, problem, loading } = useLoad(async (signal) => {
    if (ask.mode === "diff") return { diff: await get(path("v1", "topics", topic, "state-diff"), page ? { page, prefix: ask.prefix, limit: 100 } : { prefix: ask.prefix, from: when(ask.from), to: when(ask.to), limit: 100 }, signal) };
    return { state: await get(path("v1", "topics", topic, "state"), page ? { page, prefix: ask.prefix, limit: 100 } : { prefix: ask.prefix, at: when(ask.at), limit: 100 }, signal) };
  }, [later, page]);
  const change = (part) => { setPage(""); setAsk({ ...ask, ...part }); };
  const field = (name, label, empty = "now") => html`<label>${label} <input id=${`state-${name}`} autocomplete="off" spellcheck="false" placeholder=${empty} value=${ask[name]} onInput=${(e) => { change({ [name]: e.target.value }); }} /></label>`;
  const answer = value?.state ?? value?.diff;
  return html`<section><h2 class="hidden">State by key</h2>
    <form class="form" onSubmit=${(e) => { e.preventDefault(); }}>
      <label>Show <select id="state-mode" value=${ask.mode} onChange=${(e) => { change({ mode: e.target.value }); }}><option value="state">the state</option><option value="diff">what has changed</option></select></label>
      ${ask.mode === "state" ? field("at", "At (offset, time or 2h)") : html`${field("from", "From", "the beginning")}${field("to", "To")}`}
      <label>Keys that begin with <input id="state-prefix" autocomplete="off" spellcheck="false" value=${ask.prefix} onInput=${(e) => { change({ prefix: e.target.value }); }} /></label>
    </form>
    <${Note} problem=${problem} />
    ${loading && !answer && html`<p class="dim">…</p>`}
    ${value?.state && html`<p class="dim" role="status">The state at offset ${count(value.state.at)}: ${plural(value.state.count, "key")}${value.state.next || page ? " on this page" : ""}.</p>
      <div class="scroll" tabindex="0" role="region" aria-label="State by key"><table id="state"><thead><tr><th scope="col">Key</th><th scope="col" class="num">Offset</th><th scope="col">Time</th><th scope="col">Payload</th></tr></thead>
      <tbody>${value.state.events.map((e) => html`<tr key=${e.key}><th scope="row" class="cut"><a href=${to("topics", topic, "key", e.key)}>${e.key}</a></th><td class="num"><a href=${to("topics", topic, "event", e.id)}>${e.offset}</a></td><td class="time">${time(e.committed_ts ?? e.ts)}</td><td class="cut payload">${preview(e.payload)}</td></tr>`)}</tbody></table></div>`}
    ${value?.diff && html`<p class="dim" role="status">From offset ${count(value.diff.from)} to ${count(value.diff.to)}: ${plural(value.diff.count, "key")} ${value.diff.count === 1 ? "has" : "have"} changed${value.diff.next || page ? " on this page" : ""}.</p>
      <div class="scroll" tabindex="0" role="region" aria-label="Differences"><table id="diff"><thead><tr><th scope="col">Key</th><th scope="col">Change</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>
      <tbody>${value.diff.changes.map((d) => html`<tr key=${d.key}><th scope="row" class="cut"><a href=${to("topics", topic, "key", d.key)}>${d.key}</a></th><td>${d.change}</td><td class="cut payload">${d.from ? preview(d.from.payload) : ""}</td><td class="cut payload">${d.to ? preview(d.to.payload) : ""}</td></tr>`)}</tbody></table></div>`}
    ${answer && html`<div class="buttons">${page && html`<button type="button" onClick=${() => { setPage(""); }}>First page</button>`}${answer.next && html`<button type="button" onClick=${() => { setPage(answer.next); }}>Next page</button>`}</div>`}
    ${!problem && html`<${Command} text=${stateCommand(topic, ask)} />`}</section>`;
}

/** New settings, with what they would remove before they are stored. */
function Change({ topic, info, onClose }) {
  const own = info.settings_from?.entry === topic && info.settings_from?.source === "stored";
  const [text, setText] = useState(JSON.stringify(info.settings ?? {}, null, 2));
  const [plan, setPlan] = useState({});
  const later = useLater(text, 250);
  useEffect(() => {
    let mine = true;
    setPlan({});
    let value;
    try {
      value = JSON.parse(later);
    } catch (why) {
      setPlan({ problem: { code: "bad_json", message: why.message } });
      return undefined;
    }
    post(path("v1", "topics", topic, "settings", "plan"), {}, value).then((p) => { if (mine) setPlan({ value: p, of: later }); }, (problem) => { if (mine) setPlan({ problem }); });
    return () => { mine = false; };
  }, [later]);
  const p = plan.of === text ? plan.value : undefined;
  const version = own ? info.settings_from.version : 0;
  const run = async () => {
    const done = await send("PUT", path("v1", "topics", topic), { body: text, headers: { "if-match": `"${version}"` } });
    return `The settings are stored as version ${(await done.json()).version}.`;
  };
  return html`<${Ask} title=${`Settings of ${topic}`} action="Store" disabled=${!p} run=${run} onClose=${onClose} command=${p && settingsCommand(topic, JSON.parse(text), version)}>
    <label class="block">Settings as JSON; they count in place of all that is stored under this name
      <textarea id="settings" rows="9" spellcheck="false" value=${text} onInput=${(e) => { setText(e.target.value); }}></textarea></label>
    <${Note} problem=${plan.problem} />
    ${p && html`<p id="settings-plan">${p.events === 0 ? "Nothing that is there now would be removed" : html`<b>${plural(p.events, "event")}</b> of <b>${bytes(p.bytes)}</b> would be removed now`}${p.ends > 0 ? html`, and <b>${plural(p.ends, "group")}</b> would end` : ""}.</p>`}
  </${Ask}>`;
}

/** A key for a publish that is carried out once. randomUUID is there in secure contexts alone. */
const onceKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(36)).join("-");

function Publish({ topic, onClose }) {
  const [payload, setPayload] = useState("{}");
  const [key, setKey] = useState("");
  const wrong = useJSON(payload);
  // A browser sends a request again by itself where the connection breaks, and so do people: it is one publish.
  const once = useMemo(onceKey, [payload, key]);
  const run = async () => {
    const receipt = await (await send("POST", path("publish", topic), { query: { key }, body: payload, headers: { "idempotency-key": once } })).json();
    return `Published at offset ${receipt.offset}, with the id ${receipt.id}.`;
  };
  return html`<${Ask} title=${`Publish to ${topic}`} action="Publish" disabled=${wrong !== undefined} run=${run} onClose=${onClose} command=${command("pub", [topic, payload.length > longArgument ? "-" : payload], key ? ["--key", key] : [])}>
    <p>One event is published, and goes to every group of the topic.</p>
    <label class="block">Key, if it has one <input id="publish-key" autocomplete="off" spellcheck="false" value=${key} onInput=${(e) => { setKey(e.target.value); }} /></label>
    <label class="block">Payload as JSON <textarea id="publish-payload" rows="6" spellcheck="false" value=${payload} onInput=${(e) => { setPayload(e.target.value); }}></textarea></label>
    <${Note} problem=${wrong} />
  </${Ask}>`;
}

function Settings({ topic, info, may, again }) {
  const [asking, setAsking] = useState(false);
  const from = info.settings_from;
  const s = info.snapshots;
  return html`<section><h2>Settings</h2>
    <p>${!from || from.source === "default" ? "Nothing is set: the topic keeps everything." : from.entry === topic ? `Set for this topic, ${from.source === "file" ? "by the file of the hub" : `version ${from.version}`}.` : `From the entry ${from.entry}, ${from.source === "file" ? "by the file of the hub" : `version ${from.version}`}.`}</p>
    <pre id="settings-now" class="panel" tabindex="0">${JSON.stringify(info.settings ?? {}, null, 2)}</pre>
    ${may.admin && html`<div class="buttons"><button type="button" onClick=${() => { setAsking(true); }}>Change…</button></div>`}
    ${asking && html`<${Change} topic=${topic} info=${info} onClose=${() => { setAsking(false); again(); }} />`}
    ${s && html`<h2>Snapshots</h2><p>${s.topic} is ${s.state}${s.next_ts ? `, the next one ${time(s.next_ts)}` : ""}.${s.failed ? ` The last one was not made: ${s.failed}` : ""}</p>
      <ul>${s.snapshots.map((x) => html`<li>${time(x.ts)}: ${plural(x.count, "key")} up to offset ${count(x.offset)}</li>`)}</ul>`}</section>`;
}

/** The changes of one key, the newest first, each with what caused it. */
function KeyHistory({ topic, of }) {
  const [before, setBefore] = useKept("history-before", "");
  const { value: h, problem, loading } = useLoad((signal) => get(path("v1", "topics", topic, "state-history"), { key: of, before, limit: 50 }, signal), [topic, of, before]);
  const gaps = h ? [h.horizon > 1 && `Changes before offset ${count(h.horizon)} were removed.`, h.compacted > 0 && `Up to offset ${count(h.compacted)} those may be missing that a newer one has replaced.`].filter(Boolean).join(" ") : "";
  const causes = (list) => (list ?? []).map((c) => (c.topic ? html`<div><a href=${to("topics", c.topic, "event", c.id)}>${c.id}</a> <span class="dim">${c.topic}</span></div>` : html`<div class="dim">${c.id} ${c.hidden ? "(not for this token)" : "(gone)"}</div>`));
  return html`<section><h2 class="any">Key ${of}</h2><p class="crumbs"><a href=${to("topics", topic, "state")}>State by key</a></p><${Note} problem=${problem} />
    ${h && html`<p class="dim" role="status">${loading ? "…" : `${plural(h.changes.length, "change")}${h.next || before ? " on this page" : ""}, the newest first. ${gaps}`}</p>
      ${h.changes.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="History of the key"><table id="history"><thead><tr><th scope="col" class="num">Offset</th><th scope="col">Time</th><th scope="col">Change</th><th scope="col">Payload</th><th scope="col" class="wide">Before</th><th scope="col" class="wide">Caused by</th></tr></thead>
      <tbody>${h.changes.map(({ event: e, change, before: was, before_gone: gone, causes: why }) => html`<tr key=${e.offset}><td class="num"><a href=${to("topics", topic, "event", e.id)}>${e.offset}</a></td><td class="time">${time(e.committed_ts ?? e.ts)}</td><td>${change}</td><td class="cut payload">${preview(e.payload)}</td>
        <td class="wide cut payload">${was ? preview(was.payload) : gone ? "gone" : ""}</td><td class="wide">${causes(why)}</td></tr>`)}</tbody></table></div>`}
      <div class="buttons">${before !== "" && html`<button type="button" onClick=${() => { setBefore(""); }}>The newest</button>`}${h.next && html`<button type="button" onClick=${() => { setBefore(h.next); }}>Earlier</button>`}</div>`}
    <${Command} text=${command("state", [topic, of], ["--history"])} /></section>`;
}

const tabs = { events: "Events", live: "Live tail", state: "State by key", settings: "Settings" };
/** The right that a tab needs; one that is known to be missing is not there. */
const needs = { events: "read", live: "subscribe", state: "read" };

export function Topic({ live, at }) {
  const [topic, asked, id] = at;
  const { value: info, problem, again } = useLoad((signal) => get(path("v1", "topics", topic), {}, signal), [topic]);
  const may = useRights(topic);
  const has = Object.keys(tabs).filter((name) => may[needs[name]] !== false);
  const tab = asked ?? has[0];
  const [asking, setAsking] = useState(false);
  useEffect(() => { if (tab !== "live") live.show({ view: "topic", topic }); }, [topic, tab === "live"]);
  useEffect(() => { setAsking(false); }, [tab, id]); // nobody comes back to a question
  const now = live.message?.view?.topic === topic ? live.message.view : undefined;
  const t = { ...info, ...now };
  if (tab === "event" && id !== undefined) return html`<${EventView} topic=${topic} id=${id} />`;
  return html`<p class="crumbs"><a href=${to("topics")}>Topics</a></p><h1>${topic}</h1>
    <${Note} problem=${problem ?? (tab !== "live" && live.message?.problem && { code: live.message.problem.code, message: live.message.problem.detail })} />
    ${info && html`<ul class="tiles">${[
    ["Newest offset", count(t.head), ago(t.head_ts, live.message?.ts)],
    ["First kept", count(t.first_offset), t.horizon > 1 ? `horizon ${count(t.horizon)}` : "nothing was removed"],
    ["Kept", now ? `${count(now.kept_events)}${now.size_at_least ? "+" : ""}` : "…", now ? size(now) : ""],
    ["Published", `${rate(t.published)}/s`, `${bytes(t.bytes)}/s`],
    ["Groups", html`<a href=${`${to("groups")}?topic=${encodeURIComponent(topic)}`}>${count(t.groups)}</a>`, "show them"],
  ].map(([label, value, more]) => html`<li class="tile"><span class="label">${label}</span><span class="value">${value}</span><span class="more">${more}</span></li>`)}</ul>
    <div class="tabs"><nav aria-label="Of the topic"><ul>${has.map((name) => html`<li><a href=${to("topics", topic, name)} aria-current=${name === tab || name === "state" && tab === "key" ? "page" : undefined}>${tabs[name]}</a></li>`)}</ul></nav>
      ${may.publish && html`<button type="button" onClick=${() => { setAsking(true); }}>Publish…</button>`}</div>
    ${asking && html`<${Publish} topic=${topic} onClose=${() => { setAsking(false); again(); }} />`}
    ${tab === "events" && html`<${Events} key=${topic} topic=${topic} info=${t} />`}
    ${tab === "live" && html`<${Tail} key=${topic} topic=${topic} live=${live} />`}
    ${tab === "state" && html`<${State} key=${topic} topic=${topic} />`}
    ${tab === "key" && id !== undefined && html`<${KeyHistory} key=${`${topic} ${id}`} topic=${topic} of=${id} />`}
    ${tab === "settings" && html`<${Settings} topic=${topic} info=${info} may=${may} again=${again} />`}`}`;
}

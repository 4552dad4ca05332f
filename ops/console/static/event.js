// One event in full: what it says, as a tree and as it is stored, and what happened to it in each group.

import { html, useMemo, useState } from "./vendor/ui.js";
import { get, path, send } from "./api.js";
import { hubNow } from "./clock.js";
import { parse, written } from "./exact.js";
import { Note, useLoad } from "./parts.js";
import { count, doing, plural, time, to } from "./words.js";

/** How many members of a value are shown at once, and how much of a text. */
const some = 100, longText = 20_000;

/** A value as a tree. What is inside is made when somebody opens it. */
function Tree({ name, value, open }) {
  const [shown, setShown] = useState(open);
  const [most, setMost] = useState(some);
  // A page is drawn again with each message of the hub: what is not shown is not gone through for it.
  const keys = useMemo(() => (value === null || typeof value !== "object" || Array.isArray(value) ? undefined : Object.keys(value)), [value]);
  const label = name === undefined ? null : html`<span class="name">${name}: </span>`;
  if (value === null || typeof value !== "object" || written(value) !== undefined) {
    const text = written(value) ?? (typeof value === "string" && value.length > longText ? `${JSON.stringify(value.slice(0, longText))}…` : JSON.stringify(value));
    return html`<div class="leaf">${label}<span class=${value === null ? "null" : written(value) !== undefined ? "number" : typeof value}>${text}</span></div>`;
  }
  const list = Array.isArray(value);
  const names = list ? value.length : keys.length;
  if (names === 0) return html`<div class="leaf">${label}${list ? "[]" : "{}"}</div>`;
  const entries = !shown ? [] : list ? value.slice(0, most).map((v, i) => [i, v]) : keys.slice(0, most).map((k) => [k, value[k]]);
  return html`<details open=${shown} onToggle=${(e) => { setShown(e.currentTarget.open); }}><summary>${label}<span class="dim">${list ? `[ ${plural(names, "element")} ]` : `{ ${plural(names, "member")} }`}</span></summary>
    ${entries.map(([k, v]) => html`<${Tree} key=${k} name=${k} value=${v} open=${false} />`)}
    ${shown && names > most && html`<button type="button" class="small" onClick=${() => { setMost(most + 10 * some); }}>${count(names - most)} more</button>`}</details>`;
}

/** A payload with a choice between the tree and its text. */
export function Payload({ value, text }) {
  const [raw, setRaw] = useState(false);
  const [all, setAll] = useState(false);
  return html`<div class="payload-view">
    <div class="buttons"><button type="button" class="small" aria-pressed=${!raw} onClick=${() => { setRaw(false); }}>Tree</button><button type="button" class="small" aria-pressed=${raw} onClick=${() => { setRaw(true); }}>As stored</button></div>
    ${raw ? html`<pre id="raw" class="panel" tabindex="0">${all ? text : text.slice(0, longText)}</pre>${!all && text.length > longText && html`<button type="button" class="small" onClick=${() => { setAll(true); }}>All ${count(text.length)} characters</button>`}`
    : html`<div id="tree" class="panel tree"><${Tree} value=${value} open=${true} /></div>`}</div>`;
}

function Groups({ topic, id }) {
  const { value, problem } = useLoad((signal) => get(path("v1", "topics", topic, "events", id, "groups"), {}, signal), [topic, id]);
  const now = hubNow();
  return html`<section><h2>In its groups</h2><${Note} problem=${problem} />
    ${value && (value.groups.length === 0 ? html`<p class="dim">The topic has no groups.</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Groups of the event"><table id="event-groups"><thead><tr><th scope="col">Group</th><th scope="col">It…</th><th scope="col" class="num">Attempts</th><th scope="col">Failed attempts</th></tr></thead>
    <tbody>${value.groups.map((g) => html`<tr key=${g.group}><th scope="row"><a href=${to("groups", topic, g.group)}>${g.group}</a></th><td>${doing(g, now)}</td><td class="num">${g.attempt}</td>
      <td>${(g.history ?? []).map((a) => html`<div>${a.attempt}: ${a.why}${a.reason ? `, ${a.reason}` : ""} <span class="dim">${time(a.ended_ts)}</span></div>`)}</td></tr>`)}</tbody></table></div>`)}</section>`;
}

/** The fields of an event, and lists of them. */
export function Fields({ e }) {
  const rows = [
    ["Offset", e.offset], ["Committed", time(e.committed_ts ?? e.ts)], e.committed_ts && ["Time of the publisher", time(e.ts)], ["Key", e.key && html`<a href=${to("topics", e.topic, "key", e.key)}>${e.key}</a>`], ["Partition", e.partition], ["Session (sid)", e.sid],
    e.tags && ["Tags", e.tags.join(" ")], e.caused_by && ["Caused by", html`${e.caused_by.map((c) => html`<a class="id" href=${to("trace", c)}>${c}</a> `)}`],
  ].filter((r) => r && r[1] !== undefined);
  const headers = Object.entries(e.headers ?? {});
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Fields"><table id="fields"><tbody>${rows.map(([name, value]) => html`<tr key=${name}><th scope="row" class="dim">${name}</th><td class="any">${value}</td></tr>`)}
    ${headers.map(([name, value]) => html`<tr key=${`header ${name}`}><th scope="row" class="dim">Header ${name}</th><td class="any">${name === "x-correlation-id" ? html`<a href=${`${to("trace")}?correlation=${encodeURIComponent(value)}`}>${value}</a>` : value}</td></tr>`)}</tbody></table></div>`;
}

export function EventView({ topic, id }) {
  const { value, problem } = useLoad(async (signal) => {
    const text = await (await send("GET", path("v1", "topics", topic, "events", id), { signal })).text();
    return { text: text.trim(), event: parse(text) };
  }, [topic, id]);
  const e = value?.event;
  return html`<p class="crumbs"><a href=${to("topics")}>Topics</a> › <a href=${to("topics", topic)}>${topic}</a></p>
    <h1 class="id">${id}</h1>
    <${Note} problem=${problem} />
    ${e && html`<p><a href=${to("trace", id)}>What caused it, and what it caused</a></p>
      <${Fields} e=${e} />
      <section><h2>Payload</h2><${Payload} key=${id} value=${e.payload} text=${value.text} /></section>
      <${Groups} topic=${topic} id=${id} />`}`;
}

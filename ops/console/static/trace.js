// What caused an event, and what it caused, over all topics.

import { html, useEffect, useState } from "./vendor/ui.js";
import { get, path } from "./api.js";
import { hubNow } from "./clock.js";
import { LocalWindow, Note, useLoad } from "./parts.js";
import { EventRows } from "./topics.js";
import { count, doing, plural, time, to } from "./words.js";

/** How many nodes are drawn, and how many a list has: the nearest come first, with an answer of their own. */
const drawn = 100, listed = 10_000, width = 210, height = 58;

/** Places for the nodes and lines for the edges; the library comes with the first graph. */
async function arrange(trace) {
  const { Graph, layout } = await import("./vendor/graph.js");
  const g = new Graph();
  g.setGraph({ rankdir: "LR", nodesep: 16, ranksep: 54, marginx: 8, marginy: 8 });
  g.setDefaultEdgeLabel(() => ({}));
  const { nodes } = trace;
  nodes.forEach((_, i) => { g.setNode(String(i), { width, height }); });
  for (const e of trace.edges) if (!e.cycle) g.setEdge(String(e.cause), String(e.effect));
  layout(g);
  const { width: w, height: h } = g.graph();
  return {
    w, h,
    nodes: nodes.map((n, i) => ({ ...n, ...g.node(String(i)) })),
    lines: g.edges().map((e) => g.edge(e).points.map((p, i) => `${i === 0 ? "M" : "L"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join(" ")),
  };
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const what = (n) => (n.missing ? "gone, or never published here" : n.hidden ? "not for this token" : n.topic);

function Node({ n, at }) {
  const box = html`<rect width=${width} height=${height} rx="7" /><text x="10" y="19" class="topic">${n.missing ? "gone" : short(what(n), 28)}</text>
    <text x="10" y="35">${short(n.id ?? "", 30)}</text><text x="10" y="50" class="small">${n.ts ? `${time(n.ts).slice(11)} ` : ""}${(n.groups ?? []).map((g) => `${g.group}: ${g.state}`).join(", ").slice(0, 26)}</text>`;
  const place = { transform: `translate(${n.x - width / 2} ${n.y - height / 2})`, class: `node${n.id === at ? " here" : ""}${n.missing || n.hidden ? " gone" : ""}` };
  return n.topic ? html`<a href=${to("topics", n.topic, "event", n.id)} ...${place}>${box}</a>` : html`<g ...${place}>${box}</g>`;
}

function Drawing({ trace, left }) {
  const { value: a, problem } = useLoad(() => arrange(trace), [trace]);
  return html`<${Note} problem=${problem && { code: "internal", message: problem.message }} />${a && html`<div class="scroll graph" tabindex="0" role="region" aria-label="Graph of causes and effects">
    <svg id="graph" width=${a.w} height=${a.h} viewBox=${`0 0 ${a.w} ${a.h}`} role="group" aria-label=${plural(trace.nodes.length, "event")}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
      ${a.lines.map((d) => html`<path class="edge" d=${d} marker-end="url(#arrow)" />`)}${a.nodes.map((n) => html`<${Node} n=${n} at=${trace.id} />`)}</svg></div>
    ${left > 0 && html`<p class="dim">The nearest ${count(a.nodes.length)} are drawn; the list has ${count(left)} more.</p>`}`}`;
}

function Nodes({ trace }) {
  const now = hubNow();
  return html`<section><h2>As a list</h2><${LocalWindow} id="trace" label="Events of the trace" list=${trace.nodes} empty=""
    head=${html`<th scope="col" class="num steps">Steps</th><th scope="col" class="any">Topic</th><th scope="col" class="any">Id</th><th scope="col" class="wide stamp">Time</th><th scope="col" class="wide any">Groups</th><th scope="col" class="wide any">Payload</th><th scope="col" class="steps"><span class="hidden">Trace</span></th>`}
    row=${(n, at) => html`<tr key=${at} aria-rowindex=${at} class=${n.id === trace.id ? "here" : undefined}><td class="num">${n.distance > 0 ? `+${n.distance}` : n.distance}</td><td title=${what(n)}>${what(n)}</td><td class="id">${n.topic ? html`<a href=${to("topics", n.topic, "event", n.id)}>${n.id}</a>` : n.id}</td><td class="wide time">${time(n.ts)}</td>
      <td class="wide">${(n.groups ?? []).map((g) => `${g.group} ${g.state === "dead_lettered" ? "gave it up" : doing(g, now)}`).join("; ")}</td><td class="wide payload">${n.preview}</td>
      <td>${n.id && n.id !== trace.id ? html`<a href=${to("trace", n.id)} aria-label=${`Trace of ${n.id}`}>trace</a>` : ""}</td></tr>`} /></section>`;
}

/** Asks for an id, or for what belongs together by a correlation id. */
export function Traces({ live, query }) {
  useEffect(() => { live.show({}); }, []);
  const [id, setId] = useState("");
  const [correlation, setCorrelation] = useState(query.get("correlation") ?? "");
  const asked = query.get("correlation") ?? "";
  const { value, problem } = useLoad(async (signal) => (asked === "" ? undefined : get(path("v1", "events"), { correlation_id: asked, limit: 200 }, signal)), [asked]);
  const open = (e) => { e.preventDefault(); if (id !== "") location.hash = to("trace", id); };
  const find = (e) => { e.preventDefault(); location.hash = `${to("trace")}?correlation=${encodeURIComponent(correlation)}`; };
  return html`<h1>Trace</h1>
    <form class="form" onSubmit=${open}><label class="grow">Id of an event <input id="trace-id" autocomplete="off" spellcheck="false" value=${id} onInput=${(e) => { setId(e.target.value.trim()); }} /></label><button type="submit">What caused it, and what it caused</button></form>
    <form class="form" onSubmit=${find}><label class="grow">Correlation id <input id="trace-correlation" autocomplete="off" spellcheck="false" value=${correlation} onInput=${(e) => { setCorrelation(e.target.value.trim()); }} /></label><button type="submit">All events of it</button></form>
    <${Note} problem=${problem} />
    ${value && html`<p class="dim" role="status">${plural(value.events.length, "event")}${value.next ? ", and more" : ""}</p><${EventRows} id="correlated" label="Events of the correlation id" list=${value.events} />`}`;
}

/** The trace of an event: what is drawn of it first, and then all. */
function useTrace(id) {
  const near = useLoad((signal) => get(path("v1", "events", id, "trace"), { limit: drawn }, signal), [id]);
  const more = near.value?.id === id && near.value.truncated;
  const all = useLoad(async (signal) => (more ? get(path("v1", "events", id, "trace"), { limit: listed }, signal) : undefined), [id, more]);
  const trace = (more && all.value?.id === id ? all.value : undefined) ?? near.value;
  return { trace, near: near.value, problem: near.problem ?? all.problem, loading: near.loading || more && all.loading };
}

export function Trace({ live, at }) {
  const [id] = at;
  useEffect(() => { live.show({}); }, []);
  const { trace, near, problem, loading } = useTrace(id);
  return html`<p class="crumbs"><a href=${to("trace")}>Trace</a></p><h1 class="id">${id}</h1>
    <${Note} problem=${problem} />
    ${!trace && loading && html`<p class="dim">…</p>`}
    ${trace && html`<p class="dim" role="status">${plural(trace.nodes.length, "event")}, ${plural(trace.edges.length, "link")}${loading ? "; more come…" : trace.truncated ? "; there is more than a trace shows: go on from an event at its end" : ""}</p>
      <${Drawing} trace=${near} left=${trace.nodes.length - near.nodes.length} /><${Nodes} trace=${trace} />`}`;
}

// Who is connected.

import { html, useEffect, useState } from "./vendor/ui.js";
import { path, remove } from "./api.js";
import { hubNow } from "./clock.js";
import { Ask, Note } from "./parts.js";
import { ago, bytes, command, count, plural, span, time } from "./words.js";

/** Why connections end, by close code. */
const codes = {
  0: "lost, without a close", 1000: "closed by the client", 1001: "going away: the hub stopped, a person closed it, or the page was left", 1002: "protocol error", 1003: "unsupported data", 1006: "lost", 1007: "not UTF-8",
  1008: "not let in, or its token ended", 1009: "a message was too big", 1013: "took nothing for too long: a slow consumer",
};

/** How connections have ended since the start of the hub: the last ones, and how many for each reason. */
function Ended({ closed, last, now }) {
  const list = Object.entries(closed ?? {});
  return html`${last.length > 0 && html`<section><h2>Ended lately</h2><div class="scroll" tabindex="0" role="region" aria-label="Connections that have ended"><table id="ended-last"><thead><tr><th scope="col">Client</th><th scope="col" class="wide">From</th><th scope="col" class="num">Ended</th><th scope="col" class="num wide">Lasted</th><th scope="col" class="num wide">Delivered</th><th scope="col" class="num wide">Code</th><th scope="col">Why</th></tr></thead>
    <tbody>${last.map((e) => html`<tr key=${e.id}><th scope="row" class="any"><${Who} c=${e} /></th><td class="any wide">${e.remote}</td><td class="num" title=${time(e.ended_ts)}>${ago(e.ended_ts, now)}</td><td class="num wide">${span(e.ended_ts - e.since_ts)}</td><td class="num wide">${count(e.delivered)}</td><td class="num wide">${e.code === 0 ? "none" : e.code}</td><td class="any">${why(e)}</td></tr>`)}</tbody></table></div></section>`}
  ${list.length > 0 && html`<section><h2>Ended since the start</h2><div class="scroll" tabindex="0" role="region" aria-label="Ended connections by close code"><table id="ended"><thead><tr><th scope="col" class="num code">Close code</th><th scope="col">Why</th><th scope="col" class="num">Connections</th></tr></thead>
    <tbody>${list.map(([code, n]) => html`<tr key=${code}><td class="num">${code === "0" ? "none" : code}</td><td class="any">${codes[code] ?? "chosen by the client"}</td><td class="num">${count(n)}</td></tr>`)}</tbody></table></div></section>`}`;
}

/** Why one has ended: what the hub said, or what its code means. */
const why = (e) => (e.code === 0 ? `${codes[0]}${e.why ? ` (${e.why})` : ""}` : e.why || codes[e.code] || "chosen by the client");

const Who = ({ c }) => html`${c.client || c.name || "not signed in"} <span class="dim">${c.client ? c.name : ""}</span>`;

export function Connections({ live, who }) {
  const [after, setAfter] = useState("");
  useEffect(() => { live.show({ view: "connections", after }); }, [after]);
  const [asking, setAsking] = useState(undefined);
  const { view, problem, ts: now = hubNow() } = live.message ?? {};
  const list = view?.connections, more = after !== "" || view?.next;
  return html`<h1>Connections</h1>
    <div class="tools"><p class="dim" role="status">${list ? `${plural(view.total, "connection")}${more ? `, ${count(list.length)} on this page` : ""}` : "…"}</p></div>
    <${Note} problem=${problem && { code: problem.code, message: problem.detail }} />
    ${asking && html`<${Ask} title=${`Close the connection of ${asking.client || asking.name || asking.remote}?`} action="Close it" danger command=${command("connections close", [asking.id])}
      run=${async () => { await remove(path("v1", "connections", asking.id)); return "The connection is closed."; }} onClose=${() => { setAsking(undefined); }}>
      <p>Its <b>${plural(asking.in_flight, "event")}</b> in flight ${asking.in_flight === 1 ? "goes" : "go"} back to ${asking.in_flight === 1 ? "its group" : "their groups"} and the ${asking.in_flight === 1 ? "attempt does" : "attempts do"} not count; its <b>${plural(asking.subscriptions, "subscription")}</b> ${asking.subscriptions === 1 ? "ends" : "end"}. Most clients connect again by themselves.</p></${Ask}>`}
    ${list?.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Connections"><table id="connections"><thead><tr><th scope="col">Client</th><th scope="col">From</th><th scope="col" class="num">For</th><th scope="col" class="num">Subscriptions</th><th scope="col" class="num">In flight</th><th scope="col" class="num wide">Delivered</th><th scope="col" class="num wide">In</th><th scope="col" class="num wide">Out</th><th scope="col" class="num">Not sent yet</th>${who.admin && html`<th scope="col"><span class="hidden">Close</span></th>`}</tr></thead>
    <tbody>${list.map((c) => html`<tr key=${c.id}><th scope="row" class="any"><${Who} c=${c} /></th><td class="any">${c.transport} ${c.remote}</td><td class="num" title=${time(c.since_ts)}>${span(now - c.since_ts)}</td><td class="num">${count(c.subscriptions)}</td><td class="num">${count(c.in_flight)}</td>
      <td class="num wide">${count(c.delivered)}</td><td class="num wide">${bytes(c.bytes_in)}</td><td class="num wide">${bytes(c.bytes_out)}</td><td class="num">${bytes(c.queued_bytes)}</td>${who.admin && html`<td><button type="button" class="small danger" onClick=${() => { setAsking(c); }}>Close…</button></td>`}</tr>`)}</tbody></table></div>`}
    ${more && html`<div class="buttons">${after && html`<button type="button" onClick=${() => { setAfter(""); }}>First page</button>`}${view?.next && html`<button type="button" onClick=${() => { setAfter(view.next); }}>Next page</button>`}</div>`}
    ${list && html`<${Ended} closed=${live.message?.totals?.closed} last=${view.ended} now=${now} />`}`;
}

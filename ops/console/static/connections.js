// Who is connected.

import { html, useEffect, useState } from "./vendor/ui.js";
import { get, path, remove } from "./api.js";
import { Ask, Note, useLoad } from "./parts.js";
import { bytes, command, count, plural, span, time } from "./words.js";

/** Why connections end, by close code. */
const codes = {
  0: "lost, without a close", 1000: "closed by the client", 1001: "going away: the hub stopped, a person closed it, or the page was left", 1002: "protocol error", 1003: "unsupported data", 1006: "lost", 1007: "not UTF-8",
  1008: "not let in, or its token ended", 1009: "a message was too big", 1013: "took nothing for too long: a slow consumer",
};

/** How connections have ended since the start of the hub. */
function Ended({ closed }) {
  const list = Object.entries(closed ?? {});
  if (list.length === 0) return null;
  return html`<section><h2>Ended since the start</h2><div class="scroll" tabindex="0" role="region" aria-label="Ended connections"><table id="ended"><thead><tr><th scope="col" class="num">Close code</th><th scope="col">Why</th><th scope="col" class="num">Connections</th></tr></thead>
    <tbody>${list.map(([code, n]) => html`<tr key=${code}><td class="num">${code === "0" ? "none" : code}</td><td class="any">${codes[code] ?? "chosen by the client"}</td><td class="num">${count(n)}</td></tr>`)}</tbody></table></div></section>`;
}

export function Connections({ live, who }) {
  useEffect(() => { live.show({}); }, []);
  const [after, setAfter] = useState("");
  const [asking, setAsking] = useState(undefined);
  const { value, problem, loading, again } = useLoad((signal) => get(path("v1", "connections"), { after, limit: 100 }, signal), [after]);
  const list = value?.connections ?? [], now = Date.now();
  return html`<h1>Connections</h1>
    <div class="tools"><button type="button" onClick=${again}>Look again</button><p class="dim" role="status">${loading ? "…" : `${plural(list.length, "connection")}${value?.next ? ", and more" : ""}`}</p></div>
    <${Note} problem=${problem} />
    ${asking && html`<${Ask} title=${`Close the connection of ${asking.client || asking.name || asking.remote}?`} action="Close it" danger command=${command("connections", "close", asking.id)}
      run=${async () => { await remove(path("v1", "connections", asking.id)); return "The connection is closed."; }} onClose=${() => { setAsking(undefined); again(); }}>
      <p>Its <b>${plural(asking.in_flight, "event")}</b> in flight ${asking.in_flight === 1 ? "goes" : "go"} back to ${asking.in_flight === 1 ? "its group" : "their groups"} and the ${asking.in_flight === 1 ? "attempt does" : "attempts do"} not count; its <b>${plural(asking.subscriptions, "subscription")}</b> ${asking.subscriptions === 1 ? "ends" : "end"}. Most clients connect again by themselves.</p></${Ask}>`}
    ${list.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Connections"><table id="connections"><thead><tr><th scope="col">Client</th><th scope="col">From</th><th scope="col" class="num">For</th><th scope="col" class="num">Subscriptions</th><th scope="col" class="num">In flight</th><th scope="col" class="num wide">Delivered</th><th scope="col" class="num wide">In</th><th scope="col" class="num wide">Out</th><th scope="col" class="num">Not sent yet</th>${who.admin && html`<th scope="col"><span class="hidden">Close</span></th>`}</tr></thead>
    <tbody>${list.map((c) => html`<tr key=${c.id}><th scope="row" class="any">${c.client || c.name || "not signed in"} <span class="dim">${c.client ? c.name : ""}</span></th><td class="any">${c.transport} ${c.remote}</td><td class="num" title=${time(c.since_ts)}>${span(now - c.since_ts)}</td><td class="num">${count(c.subscriptions)}</td><td class="num">${count(c.in_flight)}</td>
      <td class="num wide">${count(c.delivered)}</td><td class="num wide">${bytes(c.bytes_in)}</td><td class="num wide">${bytes(c.bytes_out)}</td><td class="num">${bytes(c.queued_bytes)}</td>${who.admin && html`<td><button type="button" class="small danger" onClick=${() => { setAsking(c); }}>Close…</button></td>`}</tr>`)}</tbody></table></div>`}
    ${value?.next && html`<div class="buttons"><button type="button" onClick=${() => { setAfter(value.next); }}>More</button></div>`}
    <${Ended} closed=${live.message?.totals?.closed} />`;
}

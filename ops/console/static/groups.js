// The groups: all of them as a window, and one in full with what can be done to it.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/ui.js";
import { path, post, remove } from "./api.js";
import { hubNow } from "./clock.js";
import { Ask, Chart, Note, Sort, useKept, useLater, useRights, Window } from "./parts.js";
import { ago, blocked, command, count, doing, explain, plural, rate, span, time, to } from "./words.js";

export function Groups({ live, query }) {
  const [search, setSearch] = useKept("groups", query.get("search") ?? "");
  const [sort, setSort] = useKept("groups-by", "");
  const [range, setRange] = useState({ from: 0, rows: 40 });
  const later = useLater(search);
  const topic = query.get("topic") ?? "";
  useEffect(() => { live.show({ view: "groups", topic, search: later, sort, ...range }); }, [topic, later, sort, range]);
  const view = live.message?.view?.rows ? live.message.view : undefined;
  const move = (from, rows) => { setRange((r) => (Math.abs(r.from - from) < 5 && r.rows === rows && (from !== 0 || r.from === 0) ? r : { from, rows })); };
  const column = (by, name, kind) => html`<${Sort} by=${by} name=${name} sort=${sort} onSort=${setSort} class=${kind} />`;
  return html`<h1>Groups${topic && html` <span class="dim">in ${topic}</span>`}</h1>
    <div class="tools" role="search">
      <label><span class="hidden">Search topics and groups</span><input id="search" type="search" placeholder="Search topics and groups" autocomplete="off" spellcheck="false" value=${search} onInput=${(e) => { setSearch(e.target.value); }} /></label>
      <p class="dim" role="status">${view ? plural(view.total, "group") : ""}</p>
    </div>
    <${Note} problem=${live.message?.problem && { code: live.message.problem.code, message: live.message.problem.detail }} />
    <${Window} label="Groups" total=${view?.total ?? 0} from=${view?.from ?? 0} rows=${view?.rows ?? []} move=${move} empty=${view ? "No group is like that." : "…"}
      head=${html`${column("name", "Group")}<th scope="col" class="wide letters">State</th>${column("", "Lag", "num")}<th scope="col" class="num wide">Acked/s</th>${column("flight", "In flight", "num wide")}<th scope="col" class="num wide">Waiting</th>${column("members", "Members", "num wide")}${column("letters", "Dead letters", "num letters")}`}
      row=${(g, at) => html`<tr key=${`${g.topic} ${g.group}`} aria-rowindex=${at}>
        <th scope="row" class="name"><a href=${to("groups", g.topic, g.group)}>${g.group}</a> <span class="dim">${g.topic}</span></th>
        <td class="wide">${g.paused ? "paused" : g.members === 0 ? "no members" : g.lag === 0 ? "caught up" : g.acked > 0 ? "at work" : "waits"}</td>
        <td class="num">${count(g.lag)}</td><td class="num wide">${rate(g.acked)}</td><td class="num wide">${count(g.in_flight)}</td><td class="num wide">${count(g.waiting + g.held)}</td>
        <td class="num wide">${count(g.members)}</td><td class="num">${count(g.letters)}</td></tr>`} />`;
}

/** The lag of the group since the page was opened. */
function useTrend(live, g) {
  const trend = useRef({ ts: [], lag: [] });
  useMemo(() => {
    const { ts, lag } = trend.current, at = (live.message?.ts ?? 0) / 1000;
    if (!g || at === 0) return;
    while (ts.at(-1) >= at) { ts.pop(); lag.pop(); } // the hub's clock was set back
    ts.push(at);
    lag.push(g.lag);
    if (ts.length > 600) { ts.shift(); lag.shift(); }
  }, [live.message]);
  return trend.current;
}

function Facts({ g, now }) {
  const facts = [
    ["Cursor", `${count(g.cursor)} of ${count(g.head)}`, g.last_ts ? `committed ${ago(g.last_ts, now)}` : "at the beginning"],
    ["Lag", count(g.lag), g.lag > 0 && g.oldest_ts ? `the oldest for ${span(now - g.oldest_ts)}` : "nothing waits"],
    ["Published", `${rate(g.published)}/s`, "to the topic"],
    ["Acked", `${rate(g.acked)}/s`, `${count(g.acked_total)} since the start`],
    ["In flight", count(g.in_flight), `${count(g.waiting)} wait for a retry, ${count(g.held ?? 0)} for their key`],
    ["Members", count(g.member_count), `${count(g.expired_total)} leases ran out`],
    ["Dead letters", g.letters > 0 ? html`<a href=${to("dlq", g.topic, g.group)}>${count(g.letters)}</a>` : "0", `${count(g.dead_lettered_total)} made since the start`],
    ["Ordering", g.ordering, `${plural(g.max_attempts, "attempt")}, backoff ${span(g.backoff_min_ms)} to ${span(g.backoff_max_ms)}`],
  ];
  return html`<ul class="tiles">${facts.map(([label, value, more]) => html`<li class="tile"><span class="label">${label}</span><span class="value">${value}</span><span class="more">${more}</span></li>`)}</ul>`;
}

function Standing({ g, now }) {
  if (g.wrong) {
    const { text, help } = explain(g.wrong, now);
    return html`<div id="standing" class=${`note ${g.wrong.severity === "critical" ? "bad" : "warn"}`} data-kind=${g.wrong.kind}>${text}${help && html` <span class="dim">${help}</span>`}</div>`;
  }
  const why = blocked(g.blocked_by, now);
  if (why) return html`<p id="standing" class="note warn" data-kind=${g.blocked_by.kind}>${why}</p>`;
  return html`<p id="standing" class="note good" data-kind="">${g.lag === 0 ? "The group has done everything that was published." : "The group is at work: nothing is in its way."}</p>`;
}

/** Where a seek goes, and what it would mean: shown before it can be applied. */
function Seek({ g, onClose }) {
  const [from, setFrom] = useState("earliest");
  const [value, setValue] = useState("");
  const [plan, setPlan] = useState({});
  const [turn, setTurn] = useState(0);
  const at = path("v1", "topics", g.topic, "groups", g.group, "seek");
  const target = () => {
    switch (from) {
      case "ts": return { from, ts: new Date(value).getTime() };
      case "offset": return { from, offset: Number(value) };
      case "after_id": return { from, after_id: value };
      default: return { from };
    }
  };
  const later = useLater(`${from} ${value}`);
  useEffect(() => {
    let mine = true;
    setPlan({});
    if (["earliest", "latest"].includes(from) || value !== "") {
      post(at, {}, target()).then((p) => { if (mine) setPlan({ value: p, of: later }); }, (problem) => { if (mine) setPlan({ problem }); });
    }
    return () => { mine = false; };
  }, [later, turn]);
  const place = { ts: value && new Date(value).toISOString?.call?.(new Date(value)), offset: `offset:${value}`, after_id: `after:${value}` }[from] ?? from;
  const p = plan.of === `${from} ${value}` ? plan.value : undefined;
  const run = async () => {
    const done = await post(at, { apply: 1, epoch: p.epoch }, target());
    return `The cursor was moved from ${count(done.from)} to ${count(done.to)}: ${plural(done.again, "event")} again, ${count(done.skipped)} skipped, ${plural(done.voided, "lease")} ended.`;
  };
  return html`<${Ask} title=${`Seek ${g.group} in ${g.topic}`} action="Seek" danger disabled=${!p} run=${run} onProblem=${() => { setTurn(turn + 1); }} onClose=${onClose} command=${p && command("group seek", [g.topic, g.group], ["--from", place, "--apply", "--if-epoch", p.epoch])}>
    <div class="form">
      <label>Go to <select id="seek-from" value=${from} onChange=${(e) => { setFrom(e.target.value); setValue(""); }}>
        <option value="earliest">the first event that is kept</option><option value="latest">the end: nothing that is there now</option><option value="ts">a time</option><option value="offset">an offset</option><option value="after_id">after an event</option></select></label>
      ${from === "ts" && html`<label>Time <input id="seek-value" type="datetime-local" step="1" value=${value} onInput=${(e) => { setValue(e.target.value); }} /></label>`}
      ${from === "offset" && html`<label>Offset <input id="seek-value" type="number" min="1" value=${value} onInput=${(e) => { setValue(e.target.value); }} /></label>`}
      ${from === "after_id" && html`<label>Id of the event <input id="seek-value" autocomplete="off" spellcheck="false" value=${value} onInput=${(e) => { setValue(e.target.value.trim()); }} /></label>`}
    </div>
    <${Note} problem=${plan.problem} />
    ${p && html`<p id="seek-plan">The cursor goes from <b>${count(p.from)}</b> to <b>${count(p.to)}</b>. <b>${plural(p.again, "event")}</b> that ${p.again === 1 ? "is" : "are"} done ${p.again === 1 ? "comes" : "come"} again, <b>${count(p.skipped)}</b> that ${p.skipped === 1 ? "is" : "are"} not done will not be delivered, and <b>${plural(p.voided, "lease")}</b> ${p.voided === 1 ? "ends" : "end"}.</p>`}
  </${Ask}>`;
}

function Act({ what, g, onClose }) {
  const { current: epoch } = useRef(g.epoch);
  const at = path("v1", "topics", g.topic, "groups", g.group);
  const of = `${g.group} in ${g.topic}`;
  const out = g.in_flight === 0 ? "No event is with a member." : `The ${plural(g.in_flight, "event")} with members ${g.in_flight === 1 ? "stays" : "stay"} there and can be acked.`;
  switch (what) {
    case "pause":
      return html`<${Ask} title=${`Pause ${of}?`} action="Pause" command=${command("group pause", [g.topic, g.group])} onClose=${onClose}
        run=${async () => { const now = await post(`${at}/pause`); return `The group is paused, with ${plural(now.lag, "event")} not done.`; }}>
        <p>Deliveries stop until somebody resumes the group, also over restarts. <b>${plural(g.lag, "event")}</b> ${g.lag === 1 ? "is" : "are"} not done and ${g.lag === 1 ? "waits" : "wait"}. ${out}</p></${Ask}>`;
    case "resume":
      return html`<${Ask} title=${`Resume ${of}?`} action="Resume" command=${command("group resume", [g.topic, g.group])} onClose=${onClose}
        run=${async () => { const now = await post(`${at}/resume`); return `The group gets its ${plural(now.lag, "event")} again.`; }}>
        <p>Deliveries go on: <b>${plural(g.lag, "event")}</b> ${g.lag === 1 ? "is" : "are"} not done, for <b>${plural(g.member_count, "member")}</b>.</p></${Ask}>`;
    case "delete":
      return html`<${Ask} title=${`Delete ${of}?`} action="Delete" danger command=${command("group rm", [g.topic, g.group])} onClose=${() => { onClose(); }}
        run=${async () => {
          if (g.epoch !== epoch) throw Object.assign(new Error("Somebody has moved this group, or made it again, since you were asked. Nothing was deleted."), { code: "conflict" });
          await remove(at);
          return "The group is deleted.";
        }}>
        <p>The group goes for good: its cursor at <b>${count(g.cursor)}</b>, <b>${plural(g.in_flight, "lease")}</b>, and the knowledge of <b>${plural(g.lag, "event")}</b> that ${g.lag === 1 ? "is" : "are"} not done. Its <b>${plural(g.member_count, "member")}</b> ${g.member_count === 1 ? "is" : "are"} told. The events and the dead letters stay.</p></${Ask}>`;
    default:
      return html`<${Seek} g=${g} onClose=${onClose} />`;
  }
}

function Flying({ g, now }) {
  if (g.flying.length === 0) return null;
  return html`<section><h2>Events in flight</h2><p class="dim">Those with the lowest offsets, at most 20.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Events in flight"><table id="flying"><thead><tr><th scope="col" class="num">Offset</th><th scope="col">Id</th><th scope="col" class="num">Attempt</th><th scope="col">It…</th><th scope="col">Last failure</th></tr></thead>
    <tbody>${g.flying.map((e) => html`<tr key=${e.offset}><td class="num">${e.offset}</td><td class="id">${e.id ? html`<a href=${to("topics", g.topic, "event", e.id)}>${e.id}</a>` : ""}</td><td class="num">${e.attempt}${e.redriven ? ` (redriven ${e.redriven}×)` : ""}</td><td>${doing(e, now)}</td>
      <td>${e.history?.length ? `${e.history[0].why}${e.history[0].reason ? `: ${e.history[0].reason}` : ""}` : ""}</td></tr>`)}</tbody></table></div></section>`;
}

function Members({ g, now }) {
  return html`<section><h2>Members</h2>${g.members.length === 0
    ? html`<p class="dim">Nobody is subscribed.</p>`
    : html`<div class="scroll" tabindex="0" role="region" aria-label="Members"><table id="members"><thead><tr><th scope="col">Member</th><th scope="col">From</th><th scope="col" class="num">In flight</th><th scope="col" class="num">At most</th><th scope="col" class="num">Since</th></tr></thead>
      <tbody>${g.members.map((m) => html`<tr><th scope="row">${m.client || m.name}</th><td>${m.transport} ${m.name}</td><td class="num">${count(m.in_flight)}</td><td class="num">${count(m.max_in_flight)}</td><td class="num" title=${time(m.since_ts)}>${span(now - m.since_ts)}</td></tr>`)}</tbody></table></div>
      ${g.member_count > g.members.length && html`<p class="dim">And ${count(g.member_count - g.members.length)} more.</p>`}`}</section>`;
}

export function Group({ live, at }) {
  const [topic, group] = at;
  useEffect(() => { live.show({ view: "group", topic, group }); }, [topic, group]);
  const [asking, setAsking] = useState("");
  const may = useRights(topic);
  const view = live.message?.view;
  const fresh = view?.group === group && view?.topic === topic ? view : undefined;
  const last = useRef(undefined);
  if (fresh) last.current = fresh;
  const g = last.current;
  const trend = useTrend(live, fresh);
  const problem = live.message?.problem;
  if (problem?.code === "forbidden") last.current = undefined; // another token could see it
  const now = live.message?.ts ?? hubNow();
  return html`<p class="crumbs"><a href=${to("groups")}>Groups</a> › ${topic}</p>
    <h1>${group} <span class="dim">in <a href=${to("topics", topic)}>${topic}</a></span></h1>
    <${Note} problem=${problem && { code: problem.code, message: problem.detail }} />
    ${g && html`
      ${!problem && html`<${Standing} g=${g} now=${now} />`}
      ${may.admin && !problem && html`<div class="buttons acts">
        ${g.paused ? html`<button type="button" onClick=${() => { setAsking("resume"); }}>Resume…</button>` : html`<button type="button" onClick=${() => { setAsking("pause"); }}>Pause…</button>`}
        <button type="button" onClick=${() => { setAsking("seek"); }}>Seek…</button>
        <button type="button" class="danger" onClick=${() => { setAsking("delete"); }}>Delete…</button></div>`}
      ${asking && html`<${Act} what=${asking} g=${g} onClose=${() => { setAsking(""); }} />`}
      <${Facts} g=${g} now=${now} />
      <div class="charts one"><${Chart} label="Lag since the page was opened" tick=${live.message?.ts} format=${count} data=${[trend.ts, trend.lag]} lines=${[{ name: "events not done", color: "--four", at: 1 }]} /></div>
      <${Flying} g=${g} now=${now} />
      <${Members} g=${g} now=${now} />`}
    ${!g && !problem && html`<p class="dim">The hub is asked…</p>`}`;
}

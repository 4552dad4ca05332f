// Dead letters: which groups have some, those of one group with their reasons, and giving them back.

import { html, useEffect, useMemo, useState } from "./vendor/ui.js";
import { get, path, post, send } from "./api.js";
import { Payload } from "./event.js";
import { editable } from "./exact.js";
import { Ask, Note, useJSON, useKept, useLater, useLoad, useRights } from "./parts.js";
import { ago, command, count, longArgument, plural, time, to } from "./words.js";

export function Letters({ live }) {
  useEffect(() => { live.show({}); }, []);
  const [after, setAfter] = useState("");
  const { value, problem, again, loading } = useLoad((signal) => get(path("v1", "dlq"), { after, limit: 200 }, signal), [after]);
  const rows = (value?.topics ?? []).flatMap((t) => t.groups.map((g) => ({ ...g, topic: t.topic })));
  return html`<h1>Dead letters</h1><${Note} problem=${problem} />
    <div class="tools"><button type="button" onClick=${again}>Look again</button><p class="dim" role="status">${loading ? live.message?.totals?.letters_counting ? `The hub counts all dead letters, as it does once after each start${live.message.totals.letters > 0 ? `: ${count(live.message.totals.letters)} so far` : ""}.` : "…" : rows.length === 0 ? "There are no dead letters." : plural(rows.length, "group")}</p></div>
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Groups with dead letters"><table id="letter-groups"><thead><tr><th scope="col">Group</th><th scope="col">Topic</th><th scope="col" class="num">Open</th><th scope="col" class="num">Redriven</th><th scope="col" class="num wide">Done</th><th scope="col" class="num wide">Requeued</th></tr></thead>
    <tbody>${rows.map((g) => html`<tr key=${`${g.topic} ${g.group}`}><th scope="row"><a href=${to("dlq", g.topic, g.group)}>${g.group}</a></th><td class="any">${g.topic}</td><td class="num">${count(g.open)}</td><td class="num">${count(g.redriven)}</td><td class="num wide">${count(g.done)}</td><td class="num wide">${count(g.requeued)}</td></tr>`)}</tbody></table></div>`}
    ${value?.next && html`<div class="buttons"><button type="button" onClick=${() => { setAfter(value.next); }}>More</button></div>`}`;
}

const skipped = { waiting: "wait there already after an earlier redrive", open: "come anyway, because the group was moved back", no_group: "have no such group any more", gone: "are gone from the topic, and can be requeued", filter: "are of a group whose filter the hub does not accept any more" };

/** What a redrive would do, or did. */
const Result = ({ r }) => html`<p id="redrive-plan"><b>${plural(r.redriven, "event")}</b> of ${plural(r.matched, "dead letter")} ${r.applied ? "went" : "would go"} back${Object.entries(r.groups ?? {}).map(([g, n]) => `, ${count(n)} to ${g}`)}.
  ${Object.entries(r.skipped ?? {}).map(([why, n]) => ` ${count(n)} ${skipped[why] ?? why}.`)}</p>`;

/** Gives back what a selection means: the dry run first, then with a rate and progress. */
function Redrive({ topic, group, query, title, flags, onClose }) {
  const [rate, setRate] = useState("1000");
  const { value: plan, problem } = useLoad(() => post(path("v1", "dlq", topic, "redrive"), query), []);
  const [progress, setProgress] = useState(undefined);
  const run = async (signal) => {
    let gone = 0;
    try {
      return await apply(signal, (p) => { gone = p.redriven; setProgress(p); });
    } catch (why) {
      if (!signal.aborted) throw why;
      return `Stopped, after ${plural(gone, "event")} or some more went back. The others stay; the same again goes on from there.`;
    }
  };
  const apply = async (signal, onProgress) => {
    const response = await send("POST", path("v1", "dlq", topic, "redrive"), { query: { ...query, rate, apply: 1 }, headers: { accept: "application/x-ndjson" }, signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", last;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const said = JSON.parse(line);
        if (said.progress) onProgress(said.progress);
        else last = said;
      }
    }
    if (!last) throw Object.assign(new Error("The answer was cut off; what was given back stays so. The same again goes on from there."), { code: "unreachable" });
    if (last.type === "about:blank") throw Object.assign(new Error(last.detail), { code: last.code });
    return `${plural(last.redriven, "event")} went back.${Object.entries(last.skipped ?? {}).map(([why, n]) => ` ${count(n)} ${skipped[why] ?? why}.`).join("")}`;
  };
  return html`<${Ask} title=${title} action="Redrive" stops disabled=${!plan || plan.redriven === 0 || !(Number(rate) >= 1)} run=${run} onClose=${onClose} command=${command("dlq redrive", [topic], ["--group", group, ...flags, ...(rate === "" ? [] : ["--rate", rate]), "--apply"])}>
    <p>Each event goes back to the group that gave it up, from attempt 1. The dead letters stay, marked.</p>
    <${Note} problem=${problem} />
    ${plan && html`<${Result} r=${progress ?? plan} />`}
    <label>Events a second, at most <input id="redrive-rate" type="number" min="1" max="100000" value=${rate} onInput=${(e) => { setRate(e.target.value); }} /></label>
    ${progress && plan && html`<progress max=${plan.redriven} value=${progress.redriven} aria-label="Given back"></progress>`}</${Ask}>`;
}

/** Publishes the event of a dead letter again, with a payload that somebody has mended. */
function Requeue({ topic, letter, onClose }) {
  const [text, setText] = useState(() => editable(letter.event?.payload ?? null));
  const wrong = useJSON(text);
  const marks = letter.marks?.length ?? 0; // what somebody else has done since is not done again
  const run = async () => {
    const receipt = await (await send("POST", path("v1", "dlq", topic, String(letter.offset), "requeue"), { query: { marks }, body: text })).json();
    return `Published at offset ${receipt.offset}, with the id ${receipt.id}${receipt.duplicate ? ": it was there already" : ""}.`;
  };
  return html`<${Ask} title=${`Requeue dead letter ${letter.offset} of ${topic}`} action="Requeue" disabled=${wrong !== undefined} run=${run} onClose=${onClose} command=${command("dlq requeue", [topic, letter.offset, text.length > longArgument ? "-" : text], marks > 0 ? ["--if-marks", marks] : [])}>
    <p>One event is published to ${topic}, to <b>all</b> its groups, with the key and headers of the original. The dead letter is marked.</p>
    <label class="block">Payload as JSON <textarea id="requeue-payload" rows="8" spellcheck="false" value=${text} onInput=${(e) => { setText(e.target.value); }}></textarea></label>
    <${Note} problem=${wrong} /></${Ask}>`;
}

/** One dead letter in full. */
function Letter({ topic, offset, may, onChange }) {
  const { value: l, problem, again } = useLoad((signal) => get(path("v1", "dlq", topic, String(offset)), {}, signal), [topic, offset]);
  const [asking, setAsking] = useState(false);
  const text = useMemo(() => JSON.stringify(l?.event), [l]);
  return html`<section id="letter" class="panel"><${Note} problem=${problem} />${l && html`<h2>Dead letter ${l.offset}: event ${l.event_offset} of ${topic}</h2>
    <p>${l.reason}</p><p class="dim">${l.group} gave it up ${time(l.ts)}, after ${plural(l.attempts, "attempt")}. It is ${l.state}${(l.marks ?? []).map((m) => `; ${m.requeued_as ? `requeued as ${m.requeued_as}` : "redriven"} ${time(m.ts)} by ${m.by}`)}. <a href=${to("topics", topic, "event", l.event_id)}>The original</a></p>
    ${(l.history ?? []).map((a) => html`<p class="dim">Attempt ${a.attempt}: ${a.why}${a.reason ? `, ${a.reason}` : ""} ${time(a.ended_ts)}</p>`)}
    ${l.event && html`<${Payload} value=${l.event.payload} text=${text} />`}
    ${may.admin && may.publish && html`<div class="buttons"><button type="button" onClick=${() => { setAsking(true); }}>Edit and requeue…</button></div>`}
    ${asking && html`<${Requeue} topic=${topic} letter=${l} onClose=${() => { setAsking(false); again(); onChange(); }} />`}`}</section>`;
}

/** CEL for a part of the reason. */
const reasonHas = (text) => (text === "" ? "" : `event.payload.reason.contains(${JSON.stringify(text)})`);

export function GroupLetters({ live, at }) {
  const [topic, group] = at;
  useEffect(() => { live.show({}); }, []);
  const may = useRights(topic);
  const [ask, setAsk] = useKept("letters", { reason: "", key: "", from_ts: "", to_ts: "", all: false });
  const [after, setAfter] = useKept("letters-after", 0);
  const [chosen, setChosen] = useState(new Set());
  const [open, setOpen] = useState(undefined);
  const [redrive, setRedrive] = useState(undefined);
  const later = useLater(JSON.stringify(ask), 200);
  const query = () => ({ group, key: ask.key, filter: reasonHas(ask.reason), from_ts: ask.from_ts && new Date(ask.from_ts).getTime(), to_ts: ask.to_ts && new Date(ask.to_ts).getTime(), all: ask.all });
  const { value, problem, again, loading } = useLoad((signal) => get(path("v1", "dlq", topic), { ...query(), after: after || "", limit: 100 }, signal), [later, after, topic, group]);
  const list = value?.dead_letters ?? [];
  const change = (part) => { setAfter(0); setChosen(new Set()); setAsk({ ...ask, ...part }); };
  const toggle = (offset) => { const next = new Set(chosen); if (!next.delete(offset)) next.add(offset); setChosen(next); };
  const flags = [...(ask.key ? ["--filter-key", ask.key] : []), ...(ask.reason ? ["--filter", reasonHas(ask.reason)] : []), ...(ask.from_ts ? ["--from", new Date(ask.from_ts).toISOString()] : []), ...(ask.to_ts ? ["--to", new Date(ask.to_ts).toISOString()] : []), ...(ask.all ? ["--all"] : [])];
  const offsets = [...chosen].sort((a, b) => a - b).join(",");
  const done = () => { setRedrive(undefined); setChosen(new Set()); again(); };
  return html`<p class="crumbs"><a href=${to("dlq")}>Dead letters</a> › ${topic}</p><h1>${group} <span class="dim">in ${topic}</span></h1>
    <form class="form" onSubmit=${(e) => { e.preventDefault(); }}>
      <label class="grow">The reason has <input id="letters-reason" autocomplete="off" spellcheck="false" value=${ask.reason} onInput=${(e) => { change({ reason: e.target.value }); }} /></label>
      <label>Key <input id="letters-key" autocomplete="off" spellcheck="false" value=${ask.key} onInput=${(e) => { change({ key: e.target.value }); }} /></label>
      <label>From <input id="letters-from" type="datetime-local" step="1" value=${ask.from_ts} onInput=${(e) => { change({ from_ts: e.target.value }); }} /></label>
      <label>To <input id="letters-to" type="datetime-local" step="1" value=${ask.to_ts} onInput=${(e) => { change({ to_ts: e.target.value }); }} /></label>
      <label class="check"><input id="letters-all" type="checkbox" checked=${ask.all} onChange=${(e) => { change({ all: e.target.checked }); }} /> Those with marks too</label>
    </form>
    <${Note} problem=${problem} />
    ${may.admin && html`<div class="buttons acts">
      <button type="button" disabled=${chosen.size === 0} onClick=${() => { setRedrive({ title: `Redrive ${plural(chosen.size, "dead letter")} of ${topic}?`, query: { group, offsets, all: ask.all }, flags: ["--offset", offsets, ...(ask.all ? ["--all"] : [])] }); }}>Redrive those chosen…</button>
      <button type="button" disabled=${list.length === 0} onClick=${() => { setRedrive({ title: `Redrive all of this list, of ${group} in ${topic}?`, query: query(), flags }); }}>Redrive all of this list…</button></div>`}
    ${redrive && html`<${Redrive} topic=${topic} group=${group} ...${redrive} onClose=${done} />`}
    <p class="dim" role="status">${loading ? "…" : list.length === 0 ? "No dead letter is like that." : `${plural(list.length, "dead letter")}${value?.next ? ", and more" : ""}`}</p>
    ${list.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Dead letters"><table id="letters"><thead><tr>${may.admin && html`<th scope="col"><span class="hidden">Choose</span></th>`}<th scope="col" class="num">Offset</th><th scope="col">Given up</th><th scope="col" class="wide">Key</th><th scope="col" class="num wide">Attempts</th><th scope="col">Reason</th><th scope="col">State</th></tr></thead>
    <tbody>${list.map((l) => html`<tr key=${l.offset}>${may.admin && html`<td><input type="checkbox" aria-label=${`Choose dead letter ${l.offset}`} checked=${chosen.has(l.offset)} onChange=${() => { toggle(l.offset); }} /></td>`}
      <td class="num"><button type="button" class="small" onClick=${() => { setOpen(l.offset); }}>${l.offset}</button></td><td class="time" title=${time(l.ts)}>${ago(l.ts)}</td><td class="wide cut">${l.key}</td><td class="num wide">${l.attempts}</td><td class="any">${l.reason}</td><td>${l.state}</td></tr>`)}</tbody></table></div>
      <div class="buttons">${after > 0 && html`<button type="button" onClick=${() => { setAfter(0); }}>First page</button>`}${value?.next && html`<button type="button" onClick=${() => { setAfter(value.next); }}>Next page</button>`}</div>`}
    ${open !== undefined && html`<${Letter} key=${open} topic=${topic} offset=${open} may=${may} onChange=${again} />`}`;
}

// What several pages are made of.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/ui.js";
import uPlot from "./vendor/chart.js";
import { rights } from "./api.js";

/** A refusal, said where it happened. */
export const Note = ({ problem }) => (problem
  ? html`<p class="note bad" role="alert"><b>${problem.code}</b> ${problem.message}</p>`
  : null);

export function Command({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch { /* the browser does not allow it: the text can be selected */ }
  };
  return html`<div class="command"><code>${text.split(/(\s+)/).map((part, i) => i % 2 ? part : html`<span>${part}</span>`)}</code><button type="button" class="small" onClick=${copy}>${copied ? "Copied" : "Copy"}</button></div>`;
}

/**
 * A dialog that asks once: what it will do in numbers, and the command that does the same. What is under way in steps
 * ends where the dialog is left (stops): run is called with a signal for that.
 */
export function Ask({ title, command, action, danger, disabled, run, stops, onProblem, onClose, children }) {
  const box = useRef(null), abort = useRef(undefined);
  const [state, setState] = useState({ busy: false });
  useEffect(() => {
    box.current.showModal();
    return () => { abort.current?.abort(); };
  }, []);
  const act = async () => {
    if (state.busy) return; // a second click does nothing twice
    setState({ busy: true });
    abort.current = stops ? new AbortController() : undefined;
    try {
      const said = await run(abort.current?.signal);
      setState({ busy: false, said: said ?? "Done." });
    } catch (problem) {
      setState({ busy: false, problem });
      onProblem?.(problem);
    }
  };
  const leave = (e) => {
    if (!state.busy || !stops) return;
    e.preventDefault(); // first it is said how far it went
    abort.current.abort();
  };
  return html`<dialog ref=${box} class="ask" aria-labelledby="ask-title" onCancel=${leave} onClose=${onClose}>
    <h2 id="ask-title">${title}</h2>
    <div class="ask-body">${children}</div>
    ${command && html`<p class="dim">The same on the command line:</p><${Command} text=${command} />`}
    <${Note} problem=${state.problem} />
    ${state.said && html`<p class="note good" role="status">${state.said}</p>`}
    <div class="buttons">
      <button type="button" onClick=${state.busy && stops ? leave : () => { box.current.close(); }}>${state.said ? "Close" : !state.busy ? "Cancel" : stops ? "Stop" : "Close"}</button>
      ${!state.said && html`<button type="button" class=${danger ? "danger" : "primary"} disabled=${disabled || state.busy} onClick=${act}>${state.busy ? "Under way…" : action}</button>`}
    </div>
  </dialog>`;
}

/** What is to be asked for again when the hub is back: what could not be loaded, and what is allowed. */
const waiting = new Set();
export const cameBack = () => { for (const again of waiting) again(); };

/** What pages have loaded: another token may see something else, and another run of the hub have something else. */
const loaded = new Set();
export const loadAgain = () => { for (const again of loaded) again(); };

/** What is allowed on a topic; nothing until it is known. */
export function useRights(topic) {
  const [may, setMay] = useState({});
  useEffect(() => {
    let turn = 0;
    const ask = () => {
      const mine = ++turn;
      rights(topic).then((r) => { if (mine === turn) setMay(r); }, () => undefined);
    };
    setMay({});
    ask();
    waiting.add(ask);
    return () => {
      turn++;
      waiting.delete(ask);
    };
  }, [topic]);
  return may;
}

/** What is wrong with a text that should be JSON; undefined if nothing is. */
export function useJSON(text) {
  return useMemo(() => {
    try {
      JSON.parse(text);
    } catch (why) {
      return { code: "bad_json", message: why.message };
    }
    return undefined;
  }, [text]);
}

/** Calls again when the hub is back, where there was a problem. */
export function useBack(problem, again) {
  useEffect(() => {
    if (!problem) return undefined;
    waiting.add(again);
    return () => { waiting.delete(again); };
  }, [problem]);
}

/** Calls load when one of the values changes; {value, problem, loading, again}. */
export function useLoad(load, values) {
  const [state, setState] = useState({ loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    setState((s) => ({ ...s, loading: true }));
    load(abort.signal).then(
      (value) => { if (!abort.signal.aborted) setState({ value, loading: false }); },
      (problem) => { if (!abort.signal.aborted) setState({ problem, loading: false }); },
    );
    return () => { abort.abort(); };
  }, [...values, turn]);
  const again = () => { setTurn((t) => t + 1); };
  useBack(state.problem, again);
  useEffect(() => {
    loaded.add(again);
    return () => { loaded.delete(again); };
  }, []);
  return { ...state, again };
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const clock = new Intl.DateTimeFormat("sv", { timeStyle: "medium" });

/** Steps between the lines of a grid: whole ones. */
const steps = Array.from({ length: 13 }, (_, e) => [1, 2, 5].map((n) => n * 10 ** e)).flat();

/** Lines over time. data is [seconds, …lines]; it is drawn again with each new tick. */
export function Chart({ label, lines, data, tick, format }) {
  const last = (l) => format(data[l.at]?.at(-1));
  return html`<figure class="chart">
    <figcaption><span>${label}</span>${lines.map((l) => html`<span class="key"><i class=${`swatch ${l.color.slice(2)}`}></i>${l.name} <b>${last(l)}</b></span>`)}</figcaption>
    <div class="plot" role="img" aria-label=${`${label}: ${lines.map((l) => `${l.name} ${last(l)}`).join(", ")}`}>${data[0].length < 2
      ? html`<p class="dim">The line begins with the next message.</p>`
      : html`<${Plot} lines=${lines} data=${data} tick=${tick} format=${format} />`}</div>
  </figure>`;
}

function Plot({ lines, data, tick, format }) {
  const box = useRef(null), plot = useRef(null);
  const dark = useDark();
  useEffect(() => {
    const axis = { stroke: style("--dim"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    plot.current = new uPlot({
      width: box.current.clientWidth || 300, height: 150, legend: { show: false }, cursor: { y: false }, padding: [8, 26, 0, 0],
      scales: { x: { range: (_, low, high) => [Math.min(low ?? 0, (high ?? 60) - 60), high ?? 60] }, y: { range: (_, low, high) => [0, Math.max(1, high ?? 1, low ?? 0) * 1.05] } },
      axes: [{ ...axis, space: 90, size: 26, values: (_, ticks) => ticks.map((t) => clock.format(t * 1000)) }, { ...axis, size: 56, incrs: steps, values: (_, ticks) => ticks.map(format) }],
      series: [{}, ...lines.map((l) => ({ label: l.name, stroke: style(l.color), width: 1.6, points: { show: false } }))],
    }, data, box.current);
    const sized = new ResizeObserver(() => { plot.current?.setSize({ width: Math.max(120, box.current?.clientWidth ?? 0), height: 150 }); });
    sized.observe(box.current);
    return () => { sized.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [dark]);
  useEffect(() => { plot.current?.setData(data); }, [tick, dark]);
  return html`<div ref=${box}></div>`;
}

function useDark() {
  const media = matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(media.matches);
  useEffect(() => {
    const change = (e) => { setDark(e.matches); };
    media.addEventListener("change", change);
    return () => { media.removeEventListener("change", change); };
  }, []);
  return dark;
}

export const rowHeight = 36;

/**
 * A table of which the rows in sight are in the page. rows has those from from on, of total; move is
 * called with the first row that is wanted, and how many.
 */
export function Window({ id, fit, label, head, total, from, rows, row, move, empty }) {
  const box = useRef(null);
  const look = () => {
    if (!box.current) return; // the page has just gone
    const first = Math.max(0, Math.floor(box.current.scrollTop / rowHeight) - 5);
    move(first, Math.min(100, Math.ceil(box.current.clientHeight / rowHeight) + 12));
  };
  useEffect(() => {
    look();
    const sized = new ResizeObserver(look);
    sized.observe(box.current);
    return () => { sized.disconnect(); };
  }, []);
  const after = Math.max(0, total - from - rows.length);
  return html`<div class=${fit ? "window fit" : "window"} ref=${box} tabindex="0" role="region" aria-label=${label} onScroll=${look}>
    <table id=${id} aria-rowcount=${total + 1}>
      <thead><tr>${head}</tr></thead>
      <tbody>
        ${from > 0 && html`<tr aria-hidden="true" class="space"><td style=${{ height: `${from * rowHeight}px` }}></td></tr>`}
        ${rows.map((r, i) => row(r, from + i + 2))}
        ${after > 0 && html`<tr aria-hidden="true" class="space"><td style=${{ height: `${after * rowHeight}px` }}></td></tr>`}
      </tbody>
    </table>
    ${total === 0 && html`<p class="empty">${empty}</p>`}
  </div>`;
}

/** A Window of a list that the page has. It is as high as its rows, up to a part of the screen. */
export function LocalWindow({ list, ...rest }) {
  const [range, setRange] = useState({ from: 0, rows: 40 });
  const from = Math.min(range.from, Math.max(0, list.length - range.rows));
  return html`<${Window} ...${rest} fit total=${list.length} from=${from} rows=${list.slice(from, from + range.rows)}
    move=${(first, n) => { setRange((r) => (Math.abs(r.from - first) < 5 && r.rows === n && (first !== 0 || r.from === 0) ? r : { from: first, rows: n })); }} />`;
}

/** A heading of a column that sorts. */
export const Sort = ({ name, by, sort, onSort, children, ...rest }) => html`<th scope="col" ...${rest} aria-sort=${sort === by ? (by === "name" ? "ascending" : "descending") : undefined}>
  <button type="button" class="sort" onClick=${() => { onSort(by); }}>${name ?? children}</button></th>`;

/** State that goes with an entry of the browser's history: who comes back to it, or loads it again, has it again. */
export function useKept(name, initial) {
  const [value, set] = useState(() => {
    const kept = window.history.state?.[name] ?? initial;
    return typeof initial === "object" ? { ...initial, ...kept } : kept; // another version of the page may have had less
  });
  return [value, (next) => {
    window.history.replaceState({ ...window.history.state, [name]: next }, "");
    set(next);
  }];
}

/** A value that is asked for after the typing has ended. */
export function useLater(value, ms = 200) {
  const [later, setLater] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => { setLater(value); }, ms);
    return () => { clearTimeout(timer); };
  }, [value]);
  return later;
}

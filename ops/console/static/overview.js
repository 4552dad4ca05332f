// The overview: what the hub does, and what is wrong now.

import { html, useEffect } from "./vendor/ui.js";
import { Chart } from "./parts.js";
import { ago, bytes, count, explain, plural, rate, span, to } from "./words.js";

const Tile = ({ label, value, more, bad, href }) => html`<li class=${bad ? "tile is-bad" : "tile"}>
  <span class="label">${label}</span><span class="value">${href ? html`<a href=${href}>${value}</a>` : value}</span><span class="more">${more}</span></li>`;

function Tiles({ m }) {
  const t = m.totals, d = m.disk;
  const full = d?.full_in_s;
  return html`<ul class="tiles">
    <${Tile} label="Published" value=${`${rate(t.published)}/s`} href=${to("topics")} more=${plural(t.topics, "active topic")} />
    <${Tile} label="Delivered" value=${`${rate(t.delivered)}/s`} more=${t.nacked > 0 ? `${rate(t.nacked)}/s nacked` : "to groups and tails"} />
    <${Tile} label="Acked" value=${`${rate(t.acked)}/s`} more=${t.p50_ms === undefined ? "none in the last second" : `p50 ≤ ${count(t.p50_ms)} ms, p99 ≤ ${count(t.p99_ms)} ms`} />
    <${Tile} label="Lag" value=${count(t.lag)} more=${plural(t.groups, "group")} href=${to("groups")} />
    <${Tile} label="In flight" value=${count(t.in_flight)} more=${t.waiting > 0 ? `${count(t.waiting)} wait for a retry` : "leased to members"} />
    <${Tile} label="Dead letters" value=${count(t.letters)} bad=${t.letters > 0} href=${to("dlq")} more=${t.letters_counting ? "so far: the hub counts them" : "nothing was done about"} />
    <${Tile} label="Connections" value=${count(t.connections)} href=${to("connections")} more=${plural(t.subscriptions, "subscription")} />
    <${Tile} label="Store" value=${bytes(d.store_bytes)} bad=${full !== undefined && full < 86400}
      more=${d.needed_bytes === 0 ? "in memory" : full === undefined ? `${bytes(d.free_bytes)} free` : `full in ${span(full * 1000)}`} />
  </ul>`;
}

function Wrong({ m }) {
  const list = m.wrong ?? [];
  if (list.length === 0) {
    return html`<p class="note good" id="all-well">Nothing is wrong: ${m.totals ? "no group stands still, and no dead letter is open." : "all checks that this hub makes are well."}</p>`;
  }
  return html`<ol class="wrong" aria-label="What is wrong now">${list.map((w) => {
    const { subject, title, text, help, link } = explain(w, m.ts);
    return html`<li key=${`${w.kind} ${w.topic} ${w.group} ${w.name}`} class=${w.severity} data-kind=${w.kind}>
      <h3><span class="badge">${w.severity === "critical" ? "Stands still" : "Attention"}</span> ${link ? html`<a href=${link}>${subject}</a> ` : ""}${title}</h3>
      <p>${text}</p>${help && html`<p class="dim">${help}</p>`}
    </li>`;
  })}</ol>
  ${m.wrong_count > list.length && html`<p class="dim">And ${count(m.wrong_count - list.length)} more.</p>`}`;
}

function Cluster({ c }) {
  return html`<section class="panel"><h2>Cluster</h2>
    <p>This hub, <b>${c.id}</b>, ${c.role === "active" ? "leads" : `is a standby${c.active ? ` of ${c.active}` : ""}`}; epoch ${count(c.epoch)}.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Members of the cluster"><table><thead><tr><th scope="col">Member</th><th scope="col">Role</th><th scope="col" class="num">Entries behind</th><th scope="col" class="num">Last heard</th></tr></thead>
    <tbody>${c.members.map((x) => html`<tr><th scope="row">${x.id}</th><td>${x.active ? "active" : "standby"}</td><td class="num">${count(x.behind_entries)}</td><td class="num">${ago(x.seen_ts, c.now_ts)}</td></tr>`)}</tbody></table></div>
  </section>`;
}

export function Overview({ live }) {
  useEffect(() => { live.show({}); }, []);
  const m = live.message, h = live.history;
  if (!m || m.view || m.other) return html`<h1>Overview</h1>${live.state !== "away" && html`<p class="dim">The hub is asked…</p>`}`;
  return html`<h1>Overview</h1>
    ${m.totals && m.disk && html`<${Tiles} m=${m} />`}
    <section aria-labelledby="wrong-title"><h2 id="wrong-title">What is wrong now</h2><${Wrong} m=${m} /></section>
    ${m.totals && html`<section class="charts" aria-label="Since the page was opened">
      <${Chart} label="Events a second" tick=${m.ts} format=${rate} data=${[h.ts, h.published, h.delivered, h.acked]}
        lines=${[{ name: "published", color: "--one", at: 1 }, { name: "delivered", color: "--two", at: 2 }, { name: "acked", color: "--three", at: 3 }]} />
      <${Chart} label="Lag" tick=${m.ts} format=${count} data=${[h.ts, h.lag]} lines=${[{ name: "events not done", color: "--four", at: 1 }]} />
    </section>`}
    ${m.cluster && html`<${Cluster} c=${m.cluster} />`}`;
}

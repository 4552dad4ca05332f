// The frame of the console: signing in, the pages, and how the hub is.

import { html, render, useEffect, useReducer, useRef, useState } from "./vendor/ui.js";
import { forgetRights, get, session } from "./api.js";
import { Live } from "./live.js";
import { span, to } from "./words.js";
import { hubNow } from "./clock.js";
import { cameBack, loadAgain } from "./parts.js";
import { Overview } from "./overview.js";
import { Group, Groups } from "./groups.js";
import { Topic, Topics } from "./topics.js";
import { GroupLetters, Letters } from "./dlq.js";
import { Trace, Traces } from "./trace.js";
import { Connections } from "./connections.js";

const pages = [
  { name: "overview", title: "Overview", show: Overview },
  { name: "groups", title: "Groups", show: Groups, one: Group, depth: 2 },
  { name: "topics", title: "Topics", show: Topics, one: Topic, depth: 1 },
  { name: "dlq", title: "Dead letters", show: Letters, one: GroupLetters, depth: 2 },
  { name: "trace", title: "Trace", show: Traces, one: Trace, depth: 1 },
  { name: "connections", title: "Connections", show: Connections, depth: Infinity },
];

/** The page and its segments that the address names. */
function place() {
  const [hash, search = ""] = location.hash.slice(1).split("?");
  let segments = [];
  try {
    segments = hash.split("/").filter((s) => s !== "").map(decodeURIComponent);
  } catch { /* an address that was cut: the overview */ }
  const page = pages.find((p) => p.name === segments[0]) ?? pages[0];
  return { page, at: segments.slice(1), query: new URLSearchParams(search), key: location.hash };
}

const labels = { connecting: "Connecting…", open: "Live", denied: "Signed out", forbidden: "Not allowed", resting: "Resting" };

function Link({ live }) {
  const text = live.state === "away" ? `Reconnecting… ${span(Date.now() - live.since)}` : labels[live.state];
  return html`<p id="link" class="link" data-state=${live.state} role="status"><span class="lamp" aria-hidden="true"></span><span>${text}</span></p>`;
}

function SignIn({ why, onSignIn }) {
  const field = useRef(null), box = useRef(null);
  useEffect(() => {
    // Over a dialog, in which somebody may have written something.
    if (document.querySelector("dialog[open]")) box.current.showModal();
    else box.current.show();
    field.current.focus();
  }, []);
  const submit = (e) => {
    e.preventDefault();
    onSignIn(field.current.value.trim());
    field.current.value = "";
  };
  return html`<dialog ref=${box} class="sign-in panel" aria-labelledby="sign-in-title" onCancel=${(e) => { e.preventDefault(); }} onClose=${() => { box.current?.show(); }}><form id="sign-in" onSubmit=${submit}>
    <h2 id="sign-in-title">Sign in</h2>
    <p id="sign-in-why" role="alert">${why}</p>
    <label for="token">Token</label>
    <div class="row"><input id="token" ref=${field} type="password" autocomplete="off" spellcheck="false" required />
    <button type="submit" class="primary">Sign in</button></div>
    <p class="dim">The token stays in the memory of this page: it is gone when the page is closed or loaded again.</p>
  </form></dialog>`;
}

/** What the whole page has to say about the hub. */
function Banner({ live }) {
  const { message } = live;
  if (live.state === "away") {
    return html`<p id="away" class="banner bad" role="alert">${live.why ?? "The hub does not answer."} What you see is what it said last, ${span(message ? hubNow() - message.ts : Date.now() - live.since)} ago. The page goes on by itself.</p>`;
  }
  if (live.state === "forbidden") return html`<p class="banner bad" role="alert">${live.why}</p>`;
  if (message?.closed) {
    return html`<p id="closed" class="banner" role="status">${message.cluster?.role === "standby"
      ? `This hub is a standby${message.cluster.active ? ` of ${message.cluster.active}` : ""}: the console of the hub that leads has its topics and groups.`
      : "The store of the hub is not open yet."}</p>`;
  }
  return null;
}

function App() {
  const [, draw] = useReducer((n) => n + 1, 0);
  const [where, setWhere] = useState(place);
  const [who, setWho] = useState(undefined);
  const live = useRef(null);
  live.current ??= new Live(draw, cameBack, loadAgain);
  const main = useRef(null);

  const enter = async () => {
    try {
      setWho(await get("/console/rights"));
      loadAgain();
      live.current.start();
    } catch (problem) {
      if (problem.status === 401) return; // onRefused has said so
      if (problem.status === 403) setWho(undefined); // what another token could see goes
      live.current.say(problem.status === 403 ? "forbidden" : "away", problem.message);
      if (problem.status !== 403) setTimeout(enter, 1_000);
    }
  };
  useEffect(() => {
    session.onRefused((problem) => { live.current.stop("denied", problem.message); });
    const moved = () => { setWhere(place()); main.current?.focus({ preventScroll: true }); scrollTo(0, 0); };
    addEventListener("hashchange", moved);
    const clock = setInterval(() => { if (live.current.state === "away") draw(); }, 1_000);
    void enter();
    return () => { removeEventListener("hashchange", moved); clearInterval(clock); };
  }, []);
  const signIn = (token) => {
    session.signIn(token);
    forgetRights();
    live.current.forget();
    void enter();
  };

  const { page, at, query, key } = where;
  const Page = page.one && at.length >= page.depth ? page.one : page.show;
  useEffect(() => { document.title = `${[...at].reverse().concat(page.title).join(" · ")} · Eventhub`; }, [key]);
  const denied = live.current.state === "denied", forbidden = live.current.state === "forbidden";
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); main.current.focus(); }}>Skip to the page</a>
    <header class="bar">
      <a class="brand" href=${to()}><img src="/console/icon.svg" alt="" width="22" height="22" />Eventhub</a>
      <nav aria-label="Pages"><ul>${pages.map((p) => html`<li><a href=${to(p.name)} aria-current=${p === page ? "page" : undefined}>${p.title}</a></li>`)}</ul></nav>
      <div class="end"><span class="who" title="Signed in as">${denied || forbidden ? "" : who?.name}</span><${Link} live=${live.current} /></div>
    </header>
    <${Banner} live=${live.current} />
    <main id="main" ref=${main} tabindex="-1" data-stale=${live.current.state !== "open"}>
      ${(denied || forbidden) && html`<${SignIn} why=${denied ? live.current.why : "Another token may show more."} onSignIn=${signIn} />`}
      ${who && html`<${Page} key=${page.name === "topics" ? at[0] : key.split("?")[0]} live=${live.current} at=${at} query=${query} who=${who} />`}
    </main>
    <footer class="foot dim">${who && `Eventhub ${live.current.message?.version ?? who.version}`}</footer>`;
}

render(html`<${App} />`, document.getElementById("app"));

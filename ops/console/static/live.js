// The live stream: one for the whole page. It comes back by itself after the hub was away, and rests
// while nobody looks at the page.

import { events, send } from "./api.js";
import { heard } from "./clock.js";

/** How long there may be silence, and how long to wait before the next try. */
const silence = 6_000, again = [300, 1_000, 2_000, 3_000];
/** How many messages the charts have: ten minutes. */
const most = 600;

/** What a view is about, whatever is searched for in it. */
const subject = ({ view, topic, group }) => [view, Array.isArray(topic) ? "" : topic, group].join(" ");

export class Live {
  /** changed is called with each message and each change of state. */
  constructor(changed, back, anew) {
    this.changed = changed;
    this.back = back; // called when the hub serves, at first or again
    this.anew = anew; // called when it is another run of the hub, which may have another store
    this.serving = false;
    this.state = "connecting"; // open, away, denied, forbidden, resting
    this.why = undefined;
    this.refusal = undefined; // why the hub does not show this view
    this.since = Date.now();
    this.message = undefined;
    this.forget();
    this.view = {};
    this.listeners = new Set(); // called with each message, in the order in which they come
    this.run = 0;
    this.tries = 0;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden && !["denied", "forbidden"].includes(this.state)) this.stop("resting");
      else if (this.state === "resting") this.start();
    });
  }

  /** What was measured goes: another token may not see it. */
  forget() { this.history = { ts: [], published: [], delivered: [], acked: [], lag: [] }; }

  /** What the open page wants besides the overview. */
  show(view) {
    if (JSON.stringify(view) === JSON.stringify(this.view)) return;
    // What was said of another view is not true of this one.
    const another = subject(view) !== subject(this.view);
    if (another && this.message) this.message = { ...this.message, view: undefined, problem: undefined, wrong: undefined, other: true };
    this.view = view;
    this.refusal = undefined;
    if (another) this.changed();
    if (this.state === "open" || this.state === "connecting") this.start();
  }

  /** Where what the page shows goes on, in another stream of the same. */
  goOn(after) { this.view = { ...this.view, after }; }

  listen(call) {
    this.listeners.add(call);
    return () => { this.listeners.delete(call); };
  }

  start() {
    this.abort?.abort();
    if (document.hidden) { this.stop("resting"); return; } // a tab that was opened behind others
    if (this.state !== "open" && this.state !== "away") this.say("connecting");
    const run = ++this.run;
    void this.follow(run);
  }

  stop(state, why) {
    this.run++;
    this.abort?.abort();
    this.say(state, why);
  }

  say(state, why) {
    // A hub that opens its store answers here already, and nowhere else.
    const serving = state === "open" && !this.message?.closed, back = serving && !this.serving;
    this.serving = serving;
    if (state !== this.state) this.since = Date.now();
    this.state = state;
    this.why = why;
    this.changed();
    if (back) this.back();
  }

  async follow(run) {
    for (;;) {
      this.abort = new AbortController();
      const { abort } = this;
      let watch;
      let reason;
      const rearm = () => { clearTimeout(watch); watch = setTimeout(() => { abort.abort(); }, silence); };
      try {
        rearm();
        const response = await send("GET", "/console/live", { query: this.refusal ? {} : this.view, signal: abort.signal });
        for await (const { event, data } of events(response)) {
          if (run !== this.run) return;
          rearm();
          const value = JSON.parse(data);
          if (event === "ended") { this.stop("denied", value.detail); return; }
          this.tries = 0;
          this.take(value);
        }
      } catch (why) {
        if (run !== this.run) return;
        if (why.status === 401) { this.stop("denied", why.message); return; }
        if (why.status === 403) { this.stop("forbidden", why.message); return; }
        if (why.status >= 400 && why.status < 500 && !this.refusal) {
          this.refusal = { code: why.code, detail: why.message };
          continue; // with what every page shows
        }
        reason = why.status > 0 ? why.message : undefined;
      } finally {
        clearTimeout(watch);
        abort.abort();
      }
      if (run !== this.run) return;
      this.say("away", reason);
      await new Promise((resolve) => { setTimeout(resolve, again[Math.min(this.tries++, again.length - 1)]); });
      if (run !== this.run) return;
    }
  }

  take(message) {
    if (this.refusal) message.problem = this.refusal;
    message.other = subject(this.view) !== subject({}); // not of the overview, which alone has what is wrong
    const another = this.message !== undefined && message.run !== this.message.run;
    this.message = message;
    heard(message.ts);
    for (const call of this.listeners) call(message);
    const { history } = this, t = message.totals;
    if (t) {
      // One measurement serves several streams; and what comes after this moment is of a clock that was set back.
      while (history.ts.at(-1) >= message.ts / 1000) for (const list of Object.values(history)) list.pop();
      history.ts.push(message.ts / 1000);
      for (const name of ["published", "delivered", "acked"]) history[name].push(t[name] ?? null);
      history.lag.push(t.lag);
      if (history.ts.length > most) for (const list of Object.values(history)) list.shift();
    }
    this.say("open");
    if (another) this.anew();
  }
}

// The connection to the hub: a live tail of the topic, and the whole state whenever a connection begins.

import { connect, HubError } from "./eventhub.min.js";
import "./eventhub-http.min.js";

const AGAIN_MS = 1_000;
/** How many events of the past the sparklines begin with at most. */
const PAST = 5_000;
const CONFLATE_MS = 250;

const wait = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/**
 * Keeps `processes` current for as long as the page lives. `on.link(state, detail)` is told "connecting", "away"
 * (there was a connection), "open" and "denied"; `on.event(e)` gets each event; `on.changed()` is called when rows
 * have come or gone together.
 */
export class Feed {
  hub;
  #config;
  #processes;
  #on;
  #token;
  #signedIn;
  #load = new AbortController();
  #wasOpen = false;

  constructor(config, processes, on) {
    this.#config = config;
    this.#processes = processes;
    this.#on = on;
  }

  /** Presents this token from now on. */
  signIn(token) {
    this.#token = token;
    this.#signedIn?.();
  }

  async run() {
    for (;;) {
      let why;
      try {
        await this.#session();
      } catch (error) {
        why = error;
      }
      this.#load.abort();
      void this.hub?.close();
      this.hub = undefined;
      if (why instanceof HubError && why.denied) {
        const signedIn = new Promise((resolve) => { this.#signedIn = resolve; });
        this.#on.link("denied", why);
        await signedIn;
      } else {
        this.#on.link(this.#wasOpen ? "away" : "connecting", why);
        await wait(AGAIN_MS);
      }
    }
  }

  /** One client, over as many connections as it takes; throws why it has ended. */
  async #session() {
    this.#on.link(this.#wasOpen ? "away" : "connecting");
    const hub = await connect(this.#config.hub, {
      name: "process-page", backoff: { minMs: 100, maxMs: 2_000 }, ...(this.#token === undefined ? {} : { token: this.#token }),
    });
    this.hub = hub;
    const closed = new Promise((_, reject) => { hub.on("closed", ({ error }) => { reject(error); }); });
    closed.catch(() => undefined); // it may end before anybody waits
    hub.on("connecting", ({ error }) => {
      this.#load.abort();
      this.#on.link("away", error);
    });
    // The tail goes on where it was, and conflation skips events: only the state says that no row is missing.
    hub.on("open", () => { this.#refresh(hub); });
    const { topic } = this.#config;
    const tail = await hub.subscribe(topic.replace(/[^.]*$/, "*"), { from: "latest", conflate: { everyMs: CONFLATE_MS } }, (d) => {
      if (d.topic !== topic) return;
      this.#processes.apply(d.event);
      this.#on.event(d.event);
    });
    if (hub.state === "open") this.#refresh(hub);
    await Promise.race([closed, tail.closed]);
  }

  #refresh(hub) {
    const first = !this.#wasOpen;
    this.#wasOpen = true;
    this.#on.link("open");
    this.#load.abort();
    this.#load = new AbortController();
    const { signal } = this.#load;
    this.#read(hub, signal)
      .then(() => (first ? this.#past(hub, signal) : undefined))
      .catch((why) => { if (!signal.aborted) console.warn("the past was not read:", why); });
  }

  /** Reads the state of all processes, until that succeeds or the connection is lost. */
  async #read(hub, signal) {
    for (;;) {
      this.#processes.begin();
      const events = [];
      try {
        for await (const e of hub.http.state(this.#config.topic, { signal })) events.push(e);
      } catch (why) {
        signal.throwIfAborted();
        if (why.code !== "unknown_id") { // else there is no such topic yet
          console.warn("the state was not read:", why);
          await wait(why.retryAfterMs ?? AGAIN_MS);
          signal.throwIfAborted();
          continue;
        }
        events.length = 0;
      }
      this.#processes.settle(events);
      this.#on.changed();
      return;
    }
  }

  /** Gives the sparklines what they would have if the page had been open for some time. */
  async #past(hub, signal) {
    const { head } = this.#processes;
    if (head === 0) return;
    for await (const e of replayFrom(hub, this.#config.topic, Math.max(1, head - PAST), signal)) {
      if (e.offset > head) break;
      this.#processes.past(e);
    }
    this.#on.changed();
  }
}

/** The events from an offset on. Where retention has removed that one `gone` is called, and they begin with the first that there is. */
export async function* replayFrom(hub, topic, offset, signal, gone) {
  try {
    yield* hub.http.replay(topic, { from: { offset }, signal });
  } catch (why) {
    if (why.code !== "gone") throw why;
    gone?.();
    yield* hub.http.replay(topic, { from: "earliest", signal });
  }
}

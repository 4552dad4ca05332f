import { now } from "./clock.ts";
import { HubError, messageOf } from "./errors.ts";
import { checkSurrogates, errorOf, isLonger, type HubFrame } from "./frame.ts";
import { forgotten, Numbers, producerWindow } from "./numbers.ts";
import { webSocketClass } from "./platform.ts";
import { Room } from "./room.ts";
import { abortReason, onAbort } from "./signal.ts";
import { Socket } from "./socket.ts";
import { askToken, endOf, renewIn } from "./token.ts";
import type { ConnectOptions, HubInfo } from "./types.ts";
import { parseUrl, type HubUrl } from "./urls.ts";

/** What a request is about, in the order in which requests are sent again on a new connection. */
export const enum Kind {
  Settle, AckPublish, Resubscribe, Subscribe, Publish, Cancel,
  /** From here on: ends with its connection. */
  Leave, Pause, Renew, Probe,
}

/** A frame that is not answered yet. It is kept, so that it can be sent again. */
export interface Request {
  readonly kind: Kind;
  /** The frame, without its corr, its number and its end. */
  readonly text: string;
  /** Is given, with the number, whenever the request begins. */
  corr: number;
  /** The number of a publish, which one that has an id has not. */
  seq: number | undefined;
  sent: boolean;
  /** It was sent over a connection that was lost. */
  resent: boolean;
  /** Called once, with the OK, or with what is instead of it. */
  done(ok: HubFrame | undefined, error: HubError | undefined): void;
}

/** What else the connection notifies of. */
export interface LinkEvents {
  deliveries(f: HubFrame, chars: number): void;
  /** An ERR that answers nothing: the end of a subscription, if it names one. */
  complaint(error: HubError): void;
  /** A connection is there: subscriptions are to be made again. */
  attached(): void;
  detached(): void;
  state(state: LinkState, detail: StateDetail): void;
}

export type LinkState = "connecting" | "open" | "closed";

/** What there is to say about a state. */
export interface StateDetail {
  /** Of `open`: the hub that took the client. */
  url?: string;
  info?: HubInfo;
  /** Of `connecting` and `closed`: why. */
  error?: HubError;
  /** Of `connecting`: how many attempts there were since the last connection. */
  attempt?: number;
}

const leastPause = 100;

/** How long to wait after a refusal that says so: a little more, and not the same for all who wait. */
export function pauseOf(error: HubError): number {
  const wait = error.retryAfterMs !== undefined && error.retryAfterMs > 0 ? error.retryAfterMs : leastPause;
  return wait * (1 + Math.random() / 8);
}

/** Refuses a frame that is longer than the hub takes, with its corr and its end. */
export function checkLength(text: string, limit: number): void {
  if (isLonger(text, limit - 64)) throw new HubError("too_large", `the frame has more than ${limit} bytes: send less in one call`);
}

/** The connection to a hub, made again whenever it is lost, and the requests that are not answered. */
export class Link {
  readonly room: Room;
  #urls: HubUrl[];
  #options: ConnectOptions;
  #events: LinkEvents;
  #socket: Socket | undefined;
  /** Requests are gathered, and go out in their order. */
  #attaching = false;
  /** Tries since a connection that lasted, and when the last one began. */
  #tries = 0;
  #since = 0;
  #pending = new Map<number, Request>();
  #corr = 0;
  #numbers = new Numbers();
  /** The one that the hub knows. */
  #token: string | undefined;
  #over = new AbortController();
  #cause: HubError | undefined;
  #timers = new Map<ReturnType<typeof setTimeout>, () => void>();
  #renewal: ReturnType<typeof setTimeout> | undefined;
  #idle: (() => void)[] = [];
  info!: HubInfo;
  state: LinkState = "connecting";

  constructor(urls: readonly string[], options: ConnectOptions, events: LinkEvents) {
    if (urls.length === 0) throw new HubError("bad_request", "there is no URL of a hub: write ws://host:port");
    this.#urls = urls.map(parseUrl);
    this.#options = options;
    this.#events = events;
    this.room = new Room(options.maxPending ?? 4096, options.maxPendingChars ?? 16 << 20);
  }

  /** The URLs, the one that took the client last first. */
  get urls(): readonly HubUrl[] { return this.#urls; }
  get closing(): AbortSignal { return this.#over.signal; }
  get connected(): boolean { return this.#socket !== undefined; }

  /** Why nothing can begin any more. */
  check(): void {
    if (this.#cause) throw this.#cause;
  }

  warn(message: string, error?: unknown): void {
    const { warn } = this.#options;
    try {
      if (warn) { warn.call(this.#options, message, error); return; }
    } catch (why) { // whoever warns goes on
      error = why;
    }
    console.warn(`eventhub: ${message}`, ...(error === undefined ? [] : [messageOf(error)]));
  }

  /** Asks for the token, until the client is closed or the signal aborts. */
  token(signal = this.closing): Promise<string | undefined> { return askToken(this.#options.token, signal); }

  /** Makes the first connection. */
  async open(): Promise<void> {
    const { signal } = this.#options;
    const off = onAbort(signal, () => { this.close(new HubError("closed", "the attempt to connect was given up")); });
    try {
      for (;;) {
        try {
          const [socket, token] = await this.#connect();
          this.#attach(socket, token);
          break;
        } catch (why) {
          const error = why as HubError;
          if (error.code !== "rate_limited" || this.#cause) throw error;
          this.#events.state("connecting", { error });
          await this.sleep(pauseOf(error));
        }
      }
    } catch (why) {
      this.close(why as HubError);
      throw signal?.aborted ? abortReason(signal) : why;
    } finally {
      off();
    }
    this.#watchNetwork();
  }

  /** Tries every hub once. A denial counts more than a hub that is full, and that more than one that is not there. */
  async #connect(): Promise<[Socket, string | undefined]> {
    const cls = await webSocketClass(this.#options.WebSocket);
    const failures: HubError[] = [];
    for (const url of [...this.#urls]) {
      try {
        const token = await this.token();
        this.check();
        const socket = await Socket.open(cls, url.ws, { token, name: this.#options.name }, this.#numbers.id, this.#over.signal);
        if (this.#cause) {
          socket.drop("");
          throw this.#cause;
        }
        this.#urls = [url, ...this.#urls.filter((other) => other !== url)];
        return [socket, token];
      } catch (why) {
        if (this.#cause) throw this.#cause;
        failures.push(why instanceof HubError ? why : new HubError("unreachable", `no hub at ${url.ws}: ${messageOf(why)}`, { cause: why }));
      }
    }
    const worst = failures.find((e) => e.denied || e.code === "protocol") ?? failures.find((e) => e.code === "rate_limited");
    if (worst) throw worst;
    throw new HubError("unreachable", failures.map((e) => e.message).join("; "), { cause: failures[0] });
  }

  #attach(socket: Socket, token: string | undefined): void {
    this.#socket = socket;
    this.#since = now();
    this.#token = token;
    this.info = socket.info;
    socket.start({
      frame: (f, chars) => { this.#frame(f, chars); },
      lost: (why) => { this.#lost(socket, why); },
    }, () => {
      // The hub answers any op, one that it does not have too: that is the sign of life.
      this.ask(Kind.Probe, { op: "PING" }, () => undefined);
    });
    this.#attaching = true;
    this.#events.attached();
    this.#attaching = false;
    const waiting = [...this.#pending.values()].sort((a, b) => a.kind - b.kind || a.corr - b.corr);
    const lost = this.#numbers.opened(socket.producer, waiting);
    for (const r of lost) this.#pending.delete(r.corr);
    for (const r of waiting) {
      if (!this.#pending.has(r.corr)) continue;
      r.resent = r.sent;
      this.#send(socket, r);
    }
    for (const r of lost) this.#answer(r, undefined, forgotten(r.sent));
    this.#planRenewal(socket, token, false);
    this.#tell("open", { url: socket.url, info: socket.info });
  }

  #lost(socket: Socket, why: HubError): void {
    if (this.#socket !== socket) return;
    this.#socket = undefined;
    clearTimeout(this.#renewal);
    for (const r of [...this.#pending.values()]) {
      if (r.kind === Kind.Resubscribe) this.#pending.delete(r.corr);
      else if (r.kind >= Kind.Leave) this.#answer(r, { op: "OK" }, undefined); // the hub has forgotten it
    }
    this.#events.detached();
    if (!this.#cause) void this.#reconnect(why);
  }

  async #reconnect(lost: HubError): Promise<void> {
    const { minMs = 100, maxMs = this.#urls[1] ? 1000 : 10_000 } = this.#options.backoff ?? {};
    if (now() - this.#since > maxMs) this.#tries = 0;
    while (!this.#cause) {
      this.#tell("connecting", { error: lost, attempt: this.#tries });
      const wait = Math.min(maxMs, minMs * 2 ** this.#tries++) * (1 + Math.random()) / 2;
      await this.sleep(lost.code === "rate_limited" ? Math.max(wait, pauseOf(lost)) : wait);
      if (this.#cause) return;
      try {
        const [socket, token] = await this.#connect();
        this.#attach(socket, token);
        return;
      } catch (why) {
        lost = why as HubError;
        const late = typeof this.#options.token === "function" && lost.code === "jwt_invalid"; // the next one may be in time
        if ((lost.denied && !late) || lost.code === "protocol") {
          this.close(lost);
          return;
        }
      }
    }
  }

  /** A browser says when it has no network, long before a connection shows it. */
  #watchNetwork(): void {
    const page = globalThis as { addEventListener?: typeof addEventListener };
    const { signal } = this.#over;
    page.addEventListener?.("offline", () => { this.cut(new HubError("unreachable", "the browser is offline")); }, { signal });
    page.addEventListener?.("online", () => { for (const wake of [...this.#sleepers]) wake(); }, { signal });
  }

  #sleepers = new Set<() => void>();

  /** Waits, unless the client is closed or the network is back before. */
  async sleep(ms: number): Promise<void> {
    if (this.#cause) return;
    await new Promise<void>((resolve) => {
      const wake = (): void => { this.#sleepers.delete(wake); cancel(); resolve(); };
      const cancel = this.later(ms, wake, wake);
      this.#sleepers.add(wake);
    });
  }

  /** Calls `then` after so many ms, or `closed` if the client is closed before. */
  later(ms: number, then: () => void, closed: () => void = () => undefined): () => void {
    const timer = setTimeout(() => { this.#timers.delete(timer); then(); }, ms);
    this.#timers.set(timer, closed);
    return () => { this.#timers.delete(timer); clearTimeout(timer); };
  }

  #planRenewal(socket: Socket, token: string | undefined, failed: boolean): void {
    const end = endOf(token);
    if (end === undefined || this.#socket !== socket) return;
    this.#renewal = setTimeout(() => {
      this.#renew(socket, token).then(
        (next) => { this.#planRenewal(socket, next, next === token); },
        (why: unknown) => {
          if (this.#cause || this.#socket !== socket) return;
          this.warn("the token was not renewed", why);
          this.#planRenewal(socket, token, true);
        });
    }, renewIn(end, Date.now(), failed));
  }

  async #renew(socket: Socket, before: string | undefined): Promise<string | undefined> {
    const next = await this.token();
    if (next === before || this.#socket !== socket) return before;
    await new Promise<void>((resolve, reject) => {
      this.ask(Kind.Renew, { op: "AUTH", token: next }, (_, error) => { if (error) reject(error); else resolve(); });
    });
    this.#token = next;
    return next;
  }

  /** Sends a frame, whose corr is given here, now or as soon as there is a connection. */
  ask(kind: Kind, frame: object, done: Request["done"]): Request {
    const r = { kind, text: JSON.stringify(frame).slice(0, -1), corr: 0, seq: undefined, sent: false, resent: false, done };
    try {
      // The hub could not say whose frame that was: it would be sent again and again.
      checkSurrogates(r.text, "bad_request");
      checkLength(r.text, this.info.limits.max_frame_bytes);
    } catch (why) {
      done(undefined, why as HubError);
      return r;
    }
    this.request(r);
    return r;
  }

  /** Whether a publish without ids gets a number. After a few of them the producer is opened, on this connection or with the next. */
  numbered(): boolean {
    if (this.#numbers.on) return true;
    if ((this.#options.maxPending ?? 0) <= producerWindow && this.#numbers.want() && this.#socket) {
      this.ask(Kind.Renew, { op: "AUTH", token: this.#token, producer: { id: this.#numbers.id } }, (ok) => {
        if (ok?.producer) this.#numbers.opened(ok.producer, []);
      });
    }
    return false;
  }

  #send(socket: Socket, r: Request): void {
    r.sent = true;
    socket.send(`${r.text},"corr":"${r.corr}"${r.seq === undefined ? "" : `,"seq":${r.seq}`}}`);
  }

  /** Sends a request, now or as soon as there is a connection. */
  request(r: Request): void {
    if (this.#cause) {
      r.done(undefined, this.#cause);
      return;
    }
    r.corr = ++this.#corr;
    if (r.seq !== undefined) {
      r.sent = r.resent = false;
      if (!this.#numbers.on) {
        r.done(undefined, forgotten(false));
        return;
      }
      r.seq = this.#numbers.next();
    }
    this.#pending.set(r.corr, r);
    if (this.#socket && !this.#attaching) this.#send(this.#socket, r);
  }

  /** Takes a request back: no answer is taken from then on. */
  forget(r: Request): boolean {
    const was = this.#pending.delete(r.corr);
    this.#checkIdle();
    return was;
  }

  /** Sends a frame that nobody waits for; without a connection it is of no use. */
  post(text: string): void { this.#socket?.send(text); }

  #answer(r: Request, ok: HubFrame | undefined, error: HubError | undefined): void {
    r.done(ok, error); // an answer that makes no sense is none: another connection asks again
    this.#pending.delete(r.corr);
    this.#checkIdle();
  }

  #frame(f: HubFrame, chars: number): void {
    if (f.op === "EVENT" || f.op === "EVENTS" || f.op === "STATE") {
      this.#events.deliveries(f, chars);
      return;
    }
    if (f.corr === undefined) {
      if (f.op === "ERR") this.#events.complaint(errorOf(f));
      return;
    }
    const r = this.#pending.get(Number(f.corr));
    if (!r) return;
    if (f.op === "OK") {
      this.#answer(r, f, undefined);
      return;
    }
    const error = errorOf(f);
    const later = r.kind === Kind.Resubscribe ? error.passing
      : error.code === "shutting_down" || error.code === "not_active" || (r.seq !== undefined && !r.resent && /^(bad_sequence|fenced|unknown_producer)$/.test(error.code));
    if (later) {
      this.cut(error); // it waits for another connection, which numbers it again: this one has nothing to offer
      return;
    }
    this.#answer(r, f, error);
  }

  /** Gives up the connection: another one may serve better. */
  cut(why: HubError): void { this.#socket?.fail(why); }

  /** Resolves when nothing is unanswered and nobody waits for room. */
  async idle(): Promise<void> {
    while (!this.#cause && (this.#pending.size > 0 || !this.room.isEmpty)) {
      await new Promise<void>((resolve) => { this.#idle.push(resolve); });
    }
  }

  #checkIdle(): void {
    if (this.#idle.length > 0 && this.#pending.size === 0) {
      // Whoever was answered gives its room back first.
      queueMicrotask(() => { for (const resolve of this.#idle.splice(0)) resolve(); });
    }
  }

  #tell(state: LinkState, detail: StateDetail): void {
    this.state = state;
    this.#events.state(state, detail);
  }

  /** Ends the client. The first cause counts. */
  close(cause: HubError): Promise<void> {
    if (this.#cause) return Promise.resolve();
    this.#cause = cause;
    const socket = this.#socket;
    this.#socket = undefined;
    clearTimeout(this.#renewal);
    this.#over.abort(cause);
    for (const [timer, closed] of [...this.#timers]) {
      clearTimeout(timer);
      closed();
    }
    this.#timers.clear();
    this.room.refuse(cause); // before others give their room back
    for (const r of [...this.#pending.values()]) this.#answer(r, undefined, cause);
    for (const resolve of this.#idle.splice(0)) resolve();
    this.#events.detached();
    this.#tell("closed", { error: cause });
    if (!socket) return Promise.resolve();
    socket.drop("");
    return Promise.race([socket.closed, new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, 1_500);
      void socket.closed.then(() => { clearTimeout(timer); });
    })]);
  }
}

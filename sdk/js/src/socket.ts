import { now } from "./clock.ts";
import { HubError, messageOf } from "./errors.ts";
import { errorOf, type HubFrame } from "./frame.ts";
import type { NodeFrames } from "./node.ts";
import type { WireProducer } from "./numbers.ts";
import { framesOf } from "./platform.ts";
import type { HubInfo, WebSocketClass, WebSocketLike } from "./types.ts";

/** The version of the protocol that the SDK speaks. */
export const protocolVersion = 1;
/** For one hub: connect, upgrade, AUTH. */
const dialTimeout = 10_000;
/** Silence after which the hub is asked for a sign of life, and further silence that means the loss. */
const silence = 20_000;
const answerWait = 10_000;

/** What a connection notifies of. */
export interface SocketEvents {
  frame(f: HubFrame, chars: number): void;
  /** Once, after the last frame. */
  lost(why: HubError): void;
}

/** One WebSocket, from its sign-in to its loss. */
export class Socket {
  readonly url: string;
  info!: HubInfo;
  producer: WireProducer | undefined;
  #ws: WebSocketLike;
  #events: SocketEvents | undefined;
  #heard = now();
  #watch: ReturnType<typeof setInterval> | undefined;
  #gone: HubError | undefined;
  #frames: NodeFrames | undefined;
  #over!: () => void;
  /** Resolves when the WebSocket has closed. */
  readonly closed = new Promise<void>((resolve) => { this.#over = resolve; });

  private constructor(ws: WebSocketLike, url: string) {
    this.#ws = ws;
    this.url = url;
  }

  /** Connects and signs in. */
  static async open(cls: WebSocketClass, url: string, who: { token: string | undefined; name: string | undefined }, producer: string | undefined, signal: AbortSignal): Promise<Socket> {
    let ws: WebSocketLike;
    try {
      ws = new cls(url);
    } catch (why) {
      throw new HubError("bad_request", `no WebSocket can be made for ${url}: ${messageOf(why)}`, { cause: why });
    }
    const s = new Socket(ws, url);
    const auth = { op: "AUTH", ...who };
    const answer = await s.#signIn(producer === undefined ? [auth] : [{ ...auth, producer: { id: producer } }, auth], signal);
    if (answer.op !== "OK") throw errorOf(answer);
    s.info = answer as unknown as HubInfo;
    s.producer = answer.producer;
    if (s.info.protocol !== protocolVersion) {
      s.drop("another protocol");
      throw new HubError("protocol", `the hub at ${url} speaks version ${s.info.protocol ?? "0"} of the protocol, this SDK ${protocolVersion}`);
    }
    return s;
  }

  /** Says AUTH; to a hub that has no producer for the client, again without one. */
  #signIn(auths: object[], signal: AbortSignal): Promise<HubFrame> {
    const ws = this.#ws;
    const say = (): void => { ws.send(JSON.stringify(auths.shift())); };
    return new Promise<HubFrame>((resolve, reject) => {
      let trouble = "";
      const fail = (why: string): void => {
        this.drop(why);
        reject(new HubError("unreachable", `no hub at ${this.url}: ${why}`));
      };
      const timer = setTimeout(() => { fail(`no answer in ${dialTimeout / 1000} s`); }, dialTimeout);
      const abort = (): void => { fail("given up"); };
      signal.addEventListener("abort", abort, { once: true });
      const done = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", abort);
      };
      ws.onopen = say;
      ws.onerror = (e: unknown) => { trouble = (e as { message?: string }).message ?? ""; };
      ws.onclose = (e: unknown) => {
        done();
        this.#over();
        const { code, reason } = e as { code?: number; reason?: string };
        fail([trouble, reason, code === undefined || code === 1006 ? "" : `close code ${code}`].filter(Boolean).join(", ") || "the connection was refused or cut");
      };
      ws.onmessage = (e: unknown) => {
        const f = this.#parse((e as { data: unknown }).data);
        if (auths.length > 0 && f && /^(overloaded|unsupported_op|bad_request)$/.test(f.code ?? "")) { say(); return; }
        done();
        if (!f) { fail("what answers is no hub"); return; }
        if (f.op !== "OK") this.drop("refused");
        resolve(f);
      };
    });
  }

  /** Hands frames over from now on. */
  start(events: SocketEvents, probe: () => void): void {
    this.#events = events;
    const ws = this.#ws;
    const message = (data: unknown): void => {
      if (this.#gone) return;
      this.#heard = now();
      try {
        events.frame(this.#parse(data) as HubFrame, (data as string).length); // it throws where there is none
      } catch (cause) { // the hub's fault: what the program does runs elsewhere
        this.fail(new HubError("internal", "a frame of the hub is none", { cause }));
      }
    };
    ws.onmessage = (e: unknown) => { message((e as { data: unknown }).data); };
    this.#frames = framesOf(ws, message);
    ws.onerror = () => undefined; // onclose follows
    ws.onclose = (e: unknown) => {
      this.#over();
      const { code, reason } = e as { code?: number; reason?: string };
      this.fail(new HubError(code === 1001 ? "shutting_down" : "unreachable", `the connection to ${this.url} is lost${code ? ` (close code ${code}${reason ? `, ${reason}` : ""})` : ""}`));
    };
    let asked = 0; // when a sign of life was asked for
    this.#watch = setInterval(() => {
      const at = now();
      if (this.#heard >= asked) asked = 0; // an answer may come within the same ms
      if (asked > 0 && at - asked >= answerWait) this.fail(new HubError("unreachable", `the hub at ${this.url} is silent`));
      else if (asked === 0 && at - this.#heard >= silence) {
        asked = at;
        probe();
      }
    }, 5_000);
  }

  #parse(data: unknown): HubFrame | undefined {
    if (typeof data !== "string") return undefined;
    try {
      const f = JSON.parse(data) as HubFrame | null;
      return typeof f === "object" && f !== null && typeof f.op === "string" ? f : undefined;
    } catch {
      return undefined;
    }
  }

  send(text: string): void {
    if (!this.#gone) (this.#frames ?? this.#ws).send(text);
  }

  /** Gives the connection up: nothing comes from it any more. */
  fail(why: HubError): void {
    if (this.#gone) return;
    this.#gone = why;
    clearInterval(this.#watch);
    this.drop("");
    this.#events?.lost(why);
  }

  /** Closes the WebSocket, by the close handshake if the hub takes part in it. */
  drop(reason: string): void {
    clearInterval(this.#watch);
    this.#frames?.close();
    const ws = this.#ws as WebSocketLike & { terminate?(): void };
    ws.onmessage = null;
    ws.onclose = () => { this.#over(); };
    ws.onerror = () => undefined; // ws throws what nobody listens to
    try {
      ws.close(1000, reason);
    } catch {
      this.#over();
    }
    if (ws.terminate) {
      const timer = setTimeout(() => { ws.terminate?.(); }, 1_000);
      this.closed.finally(() => { clearTimeout(timer); }).catch(() => undefined);
    }
  }
}

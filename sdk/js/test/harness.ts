import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { test as nodeTest } from "node:test";
import { createServer, connect as dial, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect, type ConnectOptions, type Hub } from "../src/index.ts";
import type { AnyTopics, TopicMap } from "../src/topics.ts";

const binary = process.env.EVENTHUB_BINARY ?? "";
if (binary === "") throw new Error("EVENTHUB_BINARY names no hub: run scripts/test-js, which builds one");

/** The hubs that run: a test that fails must leave none. */
const running = new Set<ChildProcess>();
process.once("exit", () => { for (const child of running) child.kill("SIGKILL"); });

/** A real hub over a store of its own, which outlives a kill. */
export class TestHub {
  readonly dir = mkdtempSync(join(tmpdir(), "eventhub-js-"));
  port = 0;
  http = 0;
  ops = 0;
  /** Where the page of a demo is. */
  page = "";
  #command: string;
  #args: string[];
  #process: ChildProcess | undefined;
  log = "";
  #opsHost = "127.0.0.1";

  private constructor(command: string, args: string[]) { this.#command = command; this.#args = args; }

  static async start(...args: string[]): Promise<TestHub> {
    const hub = new TestHub("serve", args);
    await hub.run();
    return hub;
  }

  /** A hub whose operations listener has an address of its own. */
  static async apart(...args: string[]): Promise<TestHub> {
    const hub = new TestHub("serve", args);
    hub.#opsHost = "127.0.0.2";
    await hub.run();
    return hub;
  }

  /** `eventhub demo`: a hub with the processes of this machine, and its page. */
  static async demo(...args: string[]): Promise<TestHub> {
    const hub = new TestHub("demo", args);
    await hub.run();
    return hub;
  }

  get url(): string { return `ws://127.0.0.1:${this.port}`; }
  /** Where the console is. */
  get console(): string { return `http://${this.#opsHost}:${this.ops}/`; }

  file(name: string, text: string): string {
    const path = join(this.dir, name);
    writeFileSync(path, text, { mode: 0o600 });
    return path;
  }

  /** Starts the hub, again at the same addresses; resolves when it is ready. */
  async run(): Promise<void> {
    const child = spawn(binary, [this.#command, ...this.#pageArgs(), "--store", join(this.dir, "store"), "--ws", `127.0.0.1:${this.port}`, "--http", `127.0.0.1:${this.http}`,
      "--ops", `${this.#opsHost}:${this.ops}`, "--log-format", "json", ...this.#args], { stdio: ["ignore", "ignore", "pipe"], env: { PATH: process.env.PATH ?? "" } });
    this.#process = child;
    running.add(child);
    child.once("exit", () => { running.delete(child); });
    const up = new Promise<void>((resolve, reject) => {
      let rest = "";
      child.stderr.on("data", (data: Buffer) => {
        this.log += data.toString();
        rest += data.toString();
        const lines = rest.split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) {
          const entry = JSON.parse(line) as { msg: string; ws?: string; http?: string; ops?: string; page?: string };
          if (entry.ws && entry.http) {
            this.port = Number(entry.ws.split(":").at(-1));
            this.http = Number(entry.http.split(":").at(-1));
            this.ops = Number(entry.ops?.split(":").at(-1) ?? 0);
          }
          if (entry.page) this.page = entry.page;
          if (this.port !== 0 && (entry.page || (entry.ws && this.#command === "serve"))) resolve();
        }
      });
      child.once("exit", () => { reject(new Error(`the hub did not start: ${this.log}`)); });
    });
    await up;
  }

  #pageArgs(): string[] {
    return this.#command === "demo" ? ["--page", this.page === "" ? "0" : new URL(this.page).host] : [];
  }

  async stop(signal: "SIGTERM" | "SIGKILL" = "SIGTERM"): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (!child) return;
    const ended = new Promise<void>((resolve) => { child.once("exit", () => { resolve(); }); });
    child.kill(signal);
    await ended;
  }

  async end(): Promise<void> {
    await this.stop("SIGKILL");
    rmSync(this.dir, { recursive: true, force: true });
  }

  connect<M extends TopicMap = AnyTopics>(options: ConnectOptions = {}): Promise<Hub<M>> {
    return connect<M>(this.url, { warn: () => undefined, backoff: { minMs: 10, maxMs: 200 }, ...options });
  }

  /** Runs a command of the hub's own command line. */
  cli(...args: string[]): string {
    return execFileSync(binary, args, { encoding: "utf8", env: { PATH: process.env.PATH ?? "" } });
  }
}

/** A proxy in front of a hub that cuts connections. */
export class Proxy {
  port = 0;
  /** New connections are cut at once. */
  refuses = false;
  /** Bytes of the hub are thrown away: requests arrive and answers do not. */
  mute = false;
  connections = 0;
  #server: Server;
  #open = new Set<Socket>();

  private constructor(target: () => number) {
    this.#server = createServer((near) => {
      if (this.refuses) { near.destroy(); return; }
      this.connections++;
      const far = dial(target(), "127.0.0.1");
      this.#open.add(near);
      const end = (): void => { near.destroy(); far.destroy(); this.#open.delete(near); };
      near.on("data", (b) => far.write(b)).on("close", end).on("error", end);
      far.on("data", (b) => { if (!this.mute) near.write(b); }).on("close", end).on("error", end);
    });
  }

  static async before(hub: TestHub): Promise<Proxy> {
    const proxy = new Proxy(() => hub.port);
    await new Promise<void>((resolve) => { proxy.#server.listen(0, "127.0.0.1", resolve); });
    proxy.port = (proxy.#server.address() as { port: number }).port;
    return proxy;
  }

  get url(): string { return `ws://127.0.0.1:${this.port}`; }

  cut(): void { for (const socket of this.#open) socket.destroy(); }

  async end(): Promise<void> {
    this.cut();
    await new Promise<void>((resolve) => { this.#server.close(() => { resolve(); }); });
  }
}

/** A test that fails where it hangs. */
export function test(name: string, run: () => Promise<void> | void, most = 60_000): void {
  void nodeTest(name, { timeout: Number(process.env.EVENTHUB_JS_TIMEOUT ?? most) }, run);
}

/** A promise that others resolve, and what it was resolved with. */
export function signal<T = void>(): { promise: Promise<T>; resolve(value: T): void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((yes) => { resolve = yes; });
  return { promise, resolve };
}

/** Resolves at the next time that a client says a state. */
export function once<M extends TopicMap>(hub: Hub<M>, state: "connecting" | "open" | "closed"): Promise<void> {
  return new Promise((resolve) => { const off = hub.on(state, () => { off(); resolve(); }); });
}

/** Random numbers from a seed, which the test prints. */
export function seeded(seed: number): () => number {
  let a = seed;
  return () => {
    a = a + 0x6d2b79f5 | 0;
    let t = Math.imul(a ^ a >>> 15, 1 | a);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
    return ((t ^ t >>> 14) >>> 0) / 2 ** 32;
  };
}

/** All that an iterator gives. */
export async function all<T>(of: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const one of of) list.push(one);
  return list;
}

import assert from "node:assert/strict";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { after, before } from "node:test";
import { chromium, type Browser } from "playwright-core";
import { WebSocket as NodeSocket } from "ws";
import { test, TestHub } from "./harness.ts";

// WebSocket implementations of others against the hub, without the SDK: a page's, and that of ws. That of Python is in
// cmd/eventhub.
const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
let hub: TestHub, server: Server, browser: Browser, origin: string;

before(async () => {
  if (!executablePath) throw new Error("the browser tests need Chromium (package chromium)");
  server = createServer((_, response) => { response.setHeader("content-type", "text/html").end("<!doctype html><title>clients</title>"); });
  await new Promise<void>((resolve) => { server.listen(0, "127.0.0.1", resolve); });
  origin = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  hub = await TestHub.start("--origin", origin);
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], headless: true });
});

after(async () => {
  await browser?.close();
  await hub?.end();
  server?.close();
});

/** What a conversation has seen: the close code of each connection, and the lengths of the texts that came back as they were sent. */
interface Seen { closes: number[]; equal: number[] }

/**
 * Sends texts of every form of a length and gets them back by a tail, and ends connections in every way. It runs in the page too, so
 * that it has nothing but its arguments.
 */
async function converse({ url, topic }: { url: string; topic: string }, Socket?: typeof NodeSocket): Promise<Seen> {
  const seen: Seen = { closes: [], equal: [] };
  const open = async (): Promise<WebSocket> => {
    const s = new (Socket ?? WebSocket)(url) as WebSocket;
    await new Promise<void>((resolve, reject) => { s.onopen = () => { resolve(); }; s.onerror = () => { reject(new Error("no connection")); }; });
    return s;
  };
  const closed = (s: WebSocket): Promise<void> => new Promise((resolve) => {
    s.onclose = (e) => { seen.closes.push(e.code); resolve(); };
  });
  interface Frame { op: string; event?: { payload: string } }
  const ask = (s: WebSocket, frame: object, answer: string): Promise<Frame> => new Promise((resolve, reject) => {
    s.onmessage = (e) => {
      const came = JSON.parse(e.data as string) as Frame;
      if (came.op === answer) resolve(came); // OK and EVENT come in any order
    };
    s.onclose = (e) => { reject(new Error(`closed with ${e.code} ${e.reason}`)); };
    s.send(JSON.stringify(frame));
  });

  const s = await open();
  await ask(s, { op: "AUTH", token: "", corr: "1" }, "OK");
  await ask(s, { op: "SUBSCRIBE", topic, corr: "2" }, "OK"); // a tail
  const texts = [0, 1, 60, 125, 126, 127, 300, 65_400, 65_536, 131_072, 1_000_000].map((n) => "x".repeat(n)).concat("ü€😀".repeat(20_000));
  for (const text of texts) {
    const { event } = await ask(s, { op: "PUBLISH", topic, payload: text }, "EVENT");
    if (event?.payload === text) seen.equal.push(text.length);
  }
  for (const say of [
    (s: WebSocket) => { s.close(); },
    (s: WebSocket) => { s.close(1000, "bye"); },
    (s: WebSocket) => { s.close(4321, "€".repeat(41)); },
    (s: WebSocket) => { s.send(new Uint8Array([1, 2, 3])); },
    (s: WebSocket) => { s.send("x".repeat(20_000)); }, // before AUTH
    (s: WebSocket) => { for (let n = 0; n < 66; n++) s.send("x".repeat(1000)); }, // just above 64 KiB
  ]) {
    const c = await open();
    const end = closed(c);
    say(c);
    await end;
  }
  const end = closed(s);
  s.send("x".repeat(2_000_000));
  await end;
  return seen;
}

const want: Seen = {
  closes: [1005, 1000, 4321, 1003, 1009, 1008, 1009],
  equal: [0, 1, 60, 125, 126, 127, 300, 65_400, 65_536, 131_072, 1_000_000, 80_000],
};

test("the WebSocket of ws talks with the hub, and is closed with the code of what it did", async () => {
  assert.deepEqual(await converse({ url: hub.url, topic: "clients.ws" }, NodeSocket), want);
});

test("the WebSocket of a page talks with the hub, and is closed with the code of what it did", async () => {
  const page = await browser.newPage();
  await page.goto(origin);
  assert.deepEqual(await page.evaluate(converse, { url: hub.url, topic: "clients.page" }), want);
  await page.close();
});

test("ws offers compression, sends fragments and pings in the middle of them", async () => {
  const s = new NodeSocket(hub.url, { perMessageDeflate: true, protocol: "none" } as object);
  await once(s, "open");
  assert.equal(s.extensions, "");
  const frame = JSON.stringify({ op: "AUTH", token: "", corr: "ü".repeat(40) });
  const pong = once(s, "pong");
  for (let n = 0; n < frame.length; n++) {
    s.send(frame.charAt(n), { fin: n === frame.length - 1 });
    if (n === 9) s.ping("mid");
  }
  const [data] = await once(s, "message") as [Buffer];
  assert.equal((JSON.parse(data.toString()) as { corr: string }).corr, "ü".repeat(40));
  assert.equal(String((await pong)[0]), "mid");
  s.close(1000);
  assert.equal((await once(s, "close"))[0], 1000);
});

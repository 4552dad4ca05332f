import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before } from "node:test";
import { WebSocketServer } from "ws";
import { connect, HubError, type Hub } from "../src/index.ts";
import type { AnyTopics } from "../src/topics.ts";
import { signal, test, TestHub } from "./harness.ts";

let hub: TestHub, c: Hub<AnyTopics>;
const unhandled: unknown[] = [];
const note = (why: unknown): void => { unhandled.push(why); };
before(async () => { process.on("unhandledRejection", note); hub = await TestHub.start("--auth-token", "secret"); c = await hub.connect({ token: "secret" }); });
after(async () => {
  await c.close();
  await hub.end();
  await new Promise((r) => setImmediate(r));
  process.off("unhandledRejection", note);
  assert.deepEqual(unhandled, []);
});

/** A rejection with a code, and a sentence with these words. */
const says = (code: string, words: RegExp) => (why: unknown): boolean => {
  assert.ok(why instanceof HubError, String(why));
  assert.equal(why.code, code);
  assert.match(why.message, words);
  return true;
};

test("a URL that is none, or of something else, or with a secret in it", async () => {
  for (const [url, words] of [["127.0.0.1:8090", /write ws:\/\//], ["", /write ws:\/\//], ["ftp://host", /ws:\/\//], ["ws://host:1/?token=x", /option token/]] as const) {
    await assert.rejects(connect(url), says("bad_request", words));
  }
  await assert.rejects(connect([]), says("bad_request", /no URL/));
  await assert.rejects(connect("ws://127.0.0.1:9"), says("unreachable", /127\.0\.0\.1:9/));
});

test("a wrong token, none, and a function that fails", async () => {
  await assert.rejects(hub.connect({ token: "wrong" }), says("bad_token", /./));
  await assert.rejects(hub.connect(), says("no_token", /./));
  await assert.rejects(hub.connect({ token: () => Promise.reject(new Error("vault is shut")) }), says("unreachable", /vault is shut/));
});

test("a hub of another protocol version, and a server that is no hub", async () => {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  let answer = '{"op":"OK","hub":"eventhub","version":"9","protocol":2,"limits":{}}';
  await once(server, "listening");
  server.on("connection", (ws) => { ws.on("message", () => { ws.send(answer); }); });
  const url = `ws://127.0.0.1:${(server.address() as { port: number }).port}`;
  await assert.rejects(connect(url), says("protocol", /version 2.*this SDK 1/));
  answer = "hello";
  await assert.rejects(connect(url), says("unreachable", /no hub/));
  server.close();
  const plain = createServer((_, res) => { res.end("hi"); });
  await new Promise<void>((resolve) => { plain.listen(0, "127.0.0.1", resolve); });
  await assert.rejects(connect(`ws://127.0.0.1:${(plain.address() as { port: number }).port}`), says("unreachable", /127/));
  plain.close();
});

test("a hub that takes the client and ends each connection at once is tried less and less often", async () => {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  let came = 0;
  await once(server, "listening");
  server.on("connection", (ws) => {
    came++;
    ws.on("message", (text: Buffer) => {
      const { op } = JSON.parse(text.toString()) as { op: string };
      if (op === "AUTH") ws.send('{"op":"OK","hub":"eventhub","version":"9","protocol":1,"limits":{"max_frame_bytes":1000}}', () => { ws.close(1011); });
    });
  });
  const c2 = await connect(`ws://127.0.0.1:${(server.address() as { port: number }).port}`, { backoff: { minMs: 100, maxMs: 60_000 } });
  const attempts: (number | undefined)[] = [];
  c2.on("connecting", ({ attempt }) => { attempts.push(attempt); });
  while (attempts.length < 4) await new Promise((r) => setTimeout(r, 10));
  assert.deepEqual(attempts.slice(0, 4), [0, 1, 2, 3]);
  assert.ok(came >= 4);
  await c2.close();
  server.close();
});

test("a payload that is not JSON", async () => {
  const loop: Record<string, unknown> = {};
  loop.self = loop;
  for (const [payload, words] of [[undefined, /publish null/], [() => 1, /publish null/], [10n, /BigInt/], [{ a: 10n }, /BigInt/], [loop, /refers to itself/],
    ["\ud83d", /lone surrogate/], [{ "\udc00": 1 }, /lone surrogate/], [NaN, /NaN/], [-Infinity, /Infinity/]] as const) {
    await assert.rejects(c.publish("bad", payload), says("bad_event", words));
    await assert.rejects(c.publishBatch([{ topic: "bad", payload: 1 }, { topic: "bad", payload }]), (why: HubError) => why.index === 1 && says("bad_event", words)(why));
  }
  await assert.rejects(c.publish("bad", 1, { key: "\ud83d" }), says("bad_event", /lone surrogate/));
  for (const fine of ["\\ud83d", "\\\\ud83d", "\ud83d\ude00", null, "\\\ud83d\ude00"]) await c.publish("fine", fine);
  assert.equal((await c.publish("bad", 1)).offset, 1);
});

test("a payload that is too large is refused before it is sent, and the connection stays", async () => {
  let lost = 0;
  c.on("connecting", () => lost++);
  await assert.rejects(c.publish("large", "x".repeat(2 << 20)), says("too_large", /send less/));
  await assert.rejects(c.publish("large", "\u20ac".repeat(500_000)), says("too_large", /send less/));
  await c.publish("large", "x".repeat(1 << 19));
  assert.equal(lost, 0);
});

test("names and options that the hub refuses", async () => {
  await assert.rejects(c.publish("a..b", 1), says("bad_topic", /a\.\.b/));
  await assert.rejects(c.publish("", 1), says("bad_topic", /topic/));
  await assert.rejects(c.publish("t", 1, { id: "no spaces" }), says("bad_event", /id/));
  await assert.rejects(c.subscribe("t", { group: "g", maxAttempts: 0 }, () => undefined), says("bad_request", /max_attempts/));
  await assert.rejects(c.subscribe("t", { group: "g", maxAtempts: 3 } as never, () => undefined), says("bad_request", /max_attempts/));
  await assert.rejects(c.http.call("GET /v1/topics/{topic}", { params: { topic: "nobody" } }), says("unknown_id", /nobody/));
});

test("an option that is no number is refused, and not left out", async () => {
  await assert.rejects(c.delay("numbers", 1, new Date("tomorrow")), says("bad_request", /deliverAt is NaN/));
  await assert.rejects(c.delay("numbers", 1, Infinity), says("bad_request", /delayMs is Infinity/));
  await assert.rejects(c.publishBatch([{ topic: "numbers", payload: 1, ts: NaN }]), says("bad_request", /ts is NaN/));
  await assert.rejects(c.subscribe("numbers", { from: "offset", offset: NaN }, () => undefined), says("bad_request", /offset is NaN/));
  assert.equal((await c.publish("numbers", 1)).offset, 1);
});

test("a frame that the hub could not answer is refused before it is sent, and the connection stays", async () => {
  const long = "x".repeat(2 << 20), half = "\ud800";
  let lost = 0;
  const off = c.on("connecting", () => { lost++; });
  await assert.rejects(c.cancel("frames", long), says("too_large", /send less/));
  await assert.rejects(c.subscribe("frames", { filter: `event.key == "${long}"` }, () => undefined), says("too_large", /send less/));
  await assert.rejects(c.ack("frames", "g", half), says("bad_request", /lone surrogate/));
  await assert.rejects(c.nack("frames", "g", "id", half), says("bad_request", /lone surrogate/));
  await assert.rejects(c.subscribe("frames", { group: "g", filter: { key: half } }, () => undefined), says("bad_request", /lone surrogate/));
  await c.publish("frames", 1);
  assert.equal(lost, 0);
  off();
});

test("a path that would be another one is not called", async () => {
  for (const group of [".", "..", ""]) await assert.rejects(c.getCursor("paths", group), says("bad_request", /group/));
  await assert.rejects(c.http.call("GET /v1/topics/{topic}/events/{id}", { params: { topic: "paths", id: ".." } }), says("bad_request", /id/));
  await assert.rejects(c.http.call("GET /v1/topics/{topic}/state/{key}", { params: { topic: "paths", key: "\ud800" } }), says("bad_request", /key has a lone surrogate/));
  await assert.rejects(c.http.call("DELETE /v1/topics/{topic}", {} as never), says("bad_request", /no topic/));
});

test("a signal that has aborted sends nothing, and one that aborts ends the attempt to connect at once", async () => {
  const stopped = AbortSignal.abort(new Error("stopped"));
  await c.delay("aborts", 1, 3_600_000, { id: "stays" });
  await assert.rejects(c.cancel("aborts", "stays", { signal: stopped }), /stopped/);
  await c.cancel("aborts", "stays"); // it is still there
  const began = Date.now(), stop = new AbortController();
  const asked = signal();
  const attempt = hub.connect({ token: () => { asked.resolve(); return new Promise(() => undefined); }, signal: stop.signal });
  await asked.promise;
  stop.abort(new Error("no patience"));
  await assert.rejects(attempt, /no patience/);
  const server = createServer(); // takes connections, and says nothing
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  server.on("upgrade", () => undefined);
  await assert.rejects(connect(`ws://127.0.0.1:${(server.address() as { port: number }).port}`, { signal: stopped }), /stopped/);
  server.closeAllConnections();
  server.close();
  assert.ok(Date.now() - began < 4000, "the attempt went on");
});

test("whatever a handler throws is a nack, and the next event is handled", async () => {
  const c2 = await hub.connect({ token: "secret" });
  const left = signal();
  const strange: unknown[] = [Object.create(null), { toString() { throw new Error("no text"); } }, Object.assign(new Error(), { message: Object.create(null) as string }), Symbol("s"), undefined];
  const seen: unknown[] = [];
  await c2.publishBatch([...strange.keys()].map((n) => ({ topic: "strange", payload: n })));
  const s = await c2.subscribe("strange", { group: "g", from: "earliest", maxAttempts: 1 }, (d) => {
    if (seen.push(d.payload) === strange.length) left.resolve();
    throw strange[d.payload as number];
  });
  await Promise.race([left.promise, new Promise((r) => setTimeout(r, 3000))]);
  assert.deepEqual(seen, [0, 1, 2, 3, 4]);
  await s.drain();
  await c2.close();
});

test("a handler that never ends does not keep drain from ending by its signal", async () => {
  const c2 = await hub.connect({ token: "secret" });
  const begun = signal();
  await c2.subscribe("never", { group: "g", from: "earliest" }, () => { begun.resolve(); return new Promise(() => undefined); });
  await c2.publish("never", 1);
  await begun.promise;
  const stop = new AbortController();
  const drained = c2.drain({ signal: stop.signal });
  stop.abort(new Error("no patience"));
  await assert.rejects(drained, /no patience/);
  assert.equal(c2.state, "closed");
});

test("verdicts on what has no lease", async () => {
  for await (const d of c.deliveries("fine", { from: "earliest" })) {
    await assert.rejects(d.ack(), says("bad_request", /live tail/));
    void d.nack("not awaited: it must not be unhandled");
    await assert.rejects(d.extend(), says("bad_request", /lease/));
    await assert.rejects(d.ackAndPublish([]), says("bad_request", /lease/));
    break;
  }
});

test("use after close, and what was not answered by then", async () => {
  const c2 = await hub.connect({ token: "secret" });
  const loop = c2.deliveries("closing", { group: "g" });
  const joined = await c2.subscribe("closing.joined", { group: "g" }, () => undefined);
  const pending = c2.publish("closing", 1, { id: "maybe" });
  const rejected = [
    assert.rejects(pending, (why: HubError) => says("closed", /may be published.*receipts/)(why) && why.receipts?.[0]?.id === "maybe"),
    assert.rejects(loop.next(), says("closed", /closed/)),
    assert.rejects(joined.closed, says("closed", /closing\.joined.*has ended/)),
  ];
  await c2.close();
  await Promise.all(rejected);
  await assert.rejects(c2.publish("closing", 2), says("closed", /connect again/));
  await assert.rejects(c2.publishBatch([{ topic: "closing", payload: 2 }]), says("closed", /connect again/));
  await assert.rejects(c2.subscribe("closing", { group: "g" }, () => undefined), says("closed", /connect again/));
  await assert.rejects(c2.deliveries("closing", { group: "g" }).next(), says("closed", /connect again/));
  await assert.rejects(c2.cancel("closing", "x"), says("closed", /connect again/));
  await assert.rejects(c2.http.call("GET /v1/topics"), says("closed", /connect again/));
  await c2.drain();
});

test("a warn that throws stops nobody", async () => {
  let lost = 0;
  const { warn } = console, said: string[] = [];
  console.warn = (...text: string[]) => { said.push(...text); };
  try {
    const c2 = await hub.connect({ token: "secret", warn: () => { throw new Error("no log"); } }), seen: unknown[] = [], third = signal();
    c2.on("connecting", () => { lost++; });
    await c2.publishBatch([1, 2, 3].map((n) => ({ topic: "warns", payload: n })));
    await c2.subscribe("warns", { from: "earliest" }, (d) => { if (seen.push(d.payload) === 3) third.resolve(); return Promise.reject(new Error("thrown")); });
    await Promise.race([third.promise, new Promise((r) => setTimeout(r, 3000))]);
    assert.deepEqual(seen, [1, 2, 3]);
    const s = await c2.subscribe("warns", { group: "g", from: "latest" }, () => undefined);
    await c2.http.call("DELETE /v1/topics/{topic}/groups/{group}", { params: { topic: "warns", group: "g" } });
    await assert.rejects(s.closed, /has ended/);
    assert.equal(await c2.getCursor("warns", "g"), null); // nobody has made it again
    assert.equal(lost, 0);
    assert.match(said.join(), /no log/);
    await c2.close();
  } finally {
    console.warn = warn;
  }
});

test("what a program throws in a callback is said and harms nothing", async () => {
  const warned: string[] = [];
  const c2 = await hub.connect({ token: "secret", warn: (message) => warned.push(message) });
  c2.on("closed", () => { throw new Error("listener"); });
  await c2.close();
  assert.match(warned.join(), /listener of closed failed/);
});

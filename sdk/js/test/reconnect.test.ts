import assert from "node:assert/strict";
import { after, before } from "node:test";
import { WebSocket } from "ws";
import { connect, HubError, type Delivery } from "../src/index.ts";
import { all, once, Proxy, seeded, signal, test, TestHub } from "./harness.ts";

let hub: TestHub;
before(async () => { hub = await TestHub.start(); });
after(async () => { await hub.end(); });
const quick = { backoff: { minMs: 5, maxMs: 50 }, warn: (): void => undefined };

test("a publish whose answer was lost is sent again and is in the log once", async () => {
  const proxy = await Proxy.before(hub);
  const c = await connect(proxy.url, quick);
  proxy.mute = true;
  const receipt = c.publish("once", 1);
  const batch = c.publishBatch([{ topic: "once", payload: 2 }, { topic: "once.b", payload: 3 }]);
  // The log has them, and the client does not know.
  const direct = await hub.connect(quick);
  const seen = signal();
  const s = await direct.subscribe("once.b", { from: "earliest" }, () => { seen.resolve(); });
  await seen.promise;
  await s.close();
  await direct.close();
  proxy.cut();
  proxy.mute = false;
  assert.deepEqual([(await receipt).offset, (await receipt).duplicate, ...(await batch).map((r) => r.offset)], [1, false, 2, 1]);
  assert.deepEqual((await all(c.http.replay("once"))).map((e) => e.payload), [1, 2]);
  await c.close();
  await proxy.end();
});

test("publishes wait while there is no hub, and room bounds how many", async () => {
  const own = await TestHub.start();
  const c = await own.connect({ ...quick, maxPending: 10 });
  const lost = once(c, "connecting");
  await own.stop("SIGKILL");
  await lost;
  let entered = 0;
  const stop = new AbortController();
  const publishes = Array.from({ length: 30 }, (_, n) => c.publish("waits", n, { signal: n === 20 ? stop.signal : undefined }).finally(() => { entered++; }));
  stop.abort(new Error("no more"));
  await assert.rejects(publishes[20] as Promise<unknown>, /no more/);
  assert.equal(entered, 1);
  await own.run();
  const rest = await Promise.all(publishes.filter((_, n) => n !== 20));
  assert.deepEqual(rest.map((r) => r.offset).sort((a, b) => a - b), Array.from({ length: 29 }, (_, i) => i + 1));
  await c.close();
  await own.end();
});

test("no more is sent than there is room for, and the rest goes out as answers come", async () => {
  const proxy = await Proxy.before(hub);
  let sent = 0;
  class Counting extends WebSocket {
    override send(text: string): void {
      if (text.includes("PUBLISH")) sent++;
      super.send(text);
    }
  }
  const c = await connect(proxy.url, { ...quick, maxPending: 10, WebSocket: Counting });
  proxy.mute = true;
  const publishes = Array.from({ length: 30 }, (_, n) => c.publish("room", n));
  await new Promise((r) => setImmediate(r));
  assert.equal(sent, 10);
  proxy.cut();
  proxy.mute = false;
  assert.equal(new Set((await Promise.all(publishes)).map((r) => r.offset)).size, 30);
  await c.close();
  await proxy.end();
});

test("a handler keeps its event over a lost connection, and its verdict counts", async () => {
  const proxy = await Proxy.before(hub);
  const c = await connect(proxy.url, quick);
  let calls = 0;
  const begun = signal(), release = signal();
  const s = await c.subscribe("keeps", { group: "g", from: "earliest" }, async () => { calls++; begun.resolve(); await release.promise; });
  await c.publishBatch([1, 2].map((n) => ({ topic: "keeps", payload: n })));
  await begun.promise;
  const open = once(c, "open");
  proxy.cut();
  await open;
  await s.resume(); // its answer comes after the events that come again
  await c.publish("keeps.other", 1);
  release.resolve();
  await c.publish("keeps.other", 2);
  await s.drain();
  await c.drain();
  assert.ok(calls <= 2, `${calls} calls for 2 events`);
  const d = await hub.connect();
  const cursor = (await d.getCursor("keeps", "g"))?.offset ?? 0;
  assert.equal(cursor, calls);
  await d.close();
  await proxy.end();
});

test("a subscription that is drained over a lost connection keeps what its handler has", async () => {
  const proxy = await Proxy.before(hub);
  const c = await connect(proxy.url, quick), options = { group: "g", from: "earliest", backoff: { minMs: 1, maxMs: 1 } } as const;
  const begun = signal(), release = signal(), seen: unknown[] = [];
  await c.publish("drains", 1);
  const s = await c.subscribe("drains", options, async (d) => { seen.push(d.payload); begun.resolve(); await release.promise; });
  await begun.promise;
  const d = await hub.connect(), before = Date.now(), drained = s.drain(), open = once(c, "open");
  proxy.cut();
  await open;
  // It comes again, to the member of the new connection.
  for (;;) {
    const { members } = await d.http.call("GET /v1/topics/{topic}/groups/{group}", { params: { topic: "drains", group: "g" } });
    if (members.length === 1 && members[0]?.in_flight === 1 && members[0].since_ts > before) break;
    await new Promise((r) => setTimeout(r, 5));
  }
  await s.resume(); // its answer comes after the event
  release.resolve();
  await drained;
  assert.equal((await d.getCursor("drains", "g"))?.offset, 1);
  assert.deepEqual(seen, [1]);
  await d.close();
  await c.close();
  await proxy.end();
});

test("a subscription that was given up before its answer is no member of a later connection", async () => {
  const proxy = await Proxy.before(hub);
  const c = await connect(proxy.url, quick), d = await hub.connect();
  await c.publish("given.up", 1);
  const away = once(c, "connecting");
  proxy.refuses = true;
  proxy.cut();
  await away;
  const stop = new AbortController();
  const given = c.subscribe("given.up", { group: "a", from: "earliest", signal: stop.signal }, () => undefined);
  stop.abort(new Error("given up"));
  await assert.rejects(given, /given up/);
  let open = once(c, "open");
  proxy.refuses = false;
  await open;
  proxy.mute = true; // the SUBSCRIBE arrives, its answer does not
  const loop = c.deliveries("given.up", { group: "b", from: "earliest" }), first = loop.next();
  while (await d.getCursor("given.up", "b") === null) await new Promise((r) => setTimeout(r, 5));
  void loop.return?.();
  assert.deepEqual(await first, { done: true, value: undefined });
  open = once(c, "open");
  proxy.cut();
  proxy.mute = false;
  await open;
  await c.publish("given.up", 2); // what was sent again is answered before
  assert.equal(await d.getCursor("given.up", "a"), null);
  const { groups } = await d.http.call("GET /v1/groups", { query: { topic: "given.up" } });
  assert.deepEqual(groups.flatMap((g) => g.members), []);
  await d.close();
  await c.close();
  await proxy.end();
});

test("an ack that was lost is said again", async () => {
  const proxy = await Proxy.before(hub);
  const c = await connect(proxy.url, quick);
  let cut = false;
  await c.publish("acks", 1);
  for await (const d of c.deliveries("acks", { group: "g", from: "earliest", ackTimeoutMs: 30_000 })) {
    if (!cut) {
      cut = true;
      proxy.mute = true;
      const acked = d.ack();
      await new Promise((r) => setTimeout(r, 20)); // it may be at the hub by then, or not: both are right
      proxy.cut();
      proxy.mute = false;
      await acked.catch((why: unknown) => { assert.equal((why as HubError).code, "lease_lost"); });
      await c.publish("acks", 2);
      continue;
    }
    await d.ack();
    if (d.payload === 2) break;
  }
  assert.equal((await c.getCursor("acks", "g"))?.offset, 2);
  await c.close();
  await proxy.end();
});

test("a tail goes on after the last event of each topic: none twice, none left out", async () => {
  const proxy = await Proxy.before(hub);
  const c = await connect(proxy.url, quick), d = await hub.connect();
  const seen: string[] = [];
  const done = signal(), some = signal();
  const s = await c.subscribe("tails.**", { from: "latest" }, (e: Delivery) => {
    seen.push(`${e.topic} ${String(e.payload)}`);
    if (e.payload === "some") some.resolve();
    if (e.payload === "last") done.resolve();
  });
  await d.publish("tails.a", "some");
  await some.promise;
  proxy.refuses = true;
  const away = once(c, "connecting");
  proxy.cut();
  await away;
  await d.publish("tails.a", 1);
  await d.publish("tails.new", 2); // a topic that is created meanwhile
  proxy.refuses = false;
  await once(c, "open");
  await d.publish("tails.new", "last");
  await done.promise;
  await s.close();
  assert.deepEqual(seen.filter((x) => x.startsWith("tails.a")), ["tails.a some", "tails.a 1"]);
  assert.deepEqual(seen.filter((x) => x.startsWith("tails.new")), ["tails.new 2", "tails.new last"]);
  await c.close();
  await d.close();
  await proxy.end();
});

test("a seek that happened without a connection is said, and the old handler's verdict has no effect", async () => {
  const proxy = await Proxy.before(hub);
  const c = await connect(proxy.url, quick), d = await hub.connect();
  const got: [unknown, boolean][] = [];
  const begun = signal(), release = signal(), again = signal();
  const s = await c.subscribe("moved", { group: "g", from: "earliest" }, async (e: Delivery) => {
    got.push([e.payload, e.sought]);
    if (got.length === 2) { begun.resolve(); await Promise.race([release.promise, new Promise((r) => { e.signal.addEventListener("abort", r); })]); }
    if (got.length >= 3) again.resolve();
  });
  await c.publishBatch([1, 2].map((n) => ({ topic: "moved", payload: n })));
  await begun.promise;
  proxy.refuses = true;
  const away = once(c, "connecting");
  proxy.cut();
  await away;
  await d.setCursor("moved", "g", "earliest");
  proxy.refuses = false;
  await again.promise; // the signal of the handler has aborted, or this would not come
  assert.deepEqual(got[2], [1, true]);
  release.resolve();
  await s.close();
  await c.close();
  await d.close();
  await proxy.end();
});

test("several URLs: a client goes to the one that is there, and tells its states", async () => {
  const nowhere = "ws://127.0.0.1:9";
  const c = await connect([nowhere, hub.url], quick);
  assert.equal(c.state, "open");
  assert.equal((await c.publish("urls", 1)).offset, 1);
  const states: string[] = [];
  for (const state of ["connecting", "open", "closed"] as const) c.on(state, () => states.push(state));
  await c.close();
  await c.close();
  assert.deepEqual(states, ["closed"]);
});

test("a hub that stops is waited for, and one that was killed and restarted has everything", async () => {
  const own = await TestHub.start();
  const c = await own.connect(quick);
  const seen = new Set<unknown>();
  let all100 = signal(), target = 100;
  const s = await c.subscribe("killed", { group: "g", from: "earliest", concurrency: 8 }, (d: Delivery) => { seen.add(d.payload); if (seen.size === target) all100.resolve(); });
  await Promise.all(Array.from({ length: 100 }, (_, n) => c.publish("killed", n)));
  await all100.promise;
  for (const [round, how] of (["SIGTERM", "SIGKILL"] as const).entries()) {
    [all100, target] = [signal(), target + 100];
    const publishes = Array.from({ length: 100 }, (_, n) => c.publish("killed", 100 * (round + 1) + n));
    await own.stop(how);
    await own.run();
    await Promise.all(publishes);
    await all100.promise;
  }
  assert.equal(seen.size, 300);
  assert.equal((await all(c.http.replay("killed"))).length, 300);
  await s.close();
  await c.close();
  await own.end();
});

test("a hub that limits how fast is published makes publishes slower, and a signal ends the wait", async () => {
  const own = await TestHub.start("--limits-file", hub.file("limits.yaml", "publish: {connection: {per_second: 50, burst: 5}}\n"));
  const c = await own.connect(quick);
  const stop = new AbortController();
  const receipts = Promise.all(Array.from({ length: 15 }, (_, n) => c.publish("limited", n)));
  const given = c.publish("limited", "given up", { signal: stop.signal });
  stop.abort(new Error("too slow"));
  await assert.rejects(given, /too slow/);
  assert.equal(new Set((await receipts).map((r) => r.offset)).size, 15);
  await c.drain();
  await own.end();
});

test("random cuts: with numbers alone nothing is lost, nothing is twice in the log, everything is handled", async () => {
  const total = Number(process.env.EVENTHUB_JS_PUBLISHES ?? 4000);
  const seed = Number(process.env.EVENTHUB_SEED ?? Date.now() % 1e9);
  console.log(`seed ${seed}, ${total} publishes: EVENTHUB_SEED repeats the cuts`);
  const random = seeded(seed);
  const before = process.getActiveResourcesInfo().filter((r) => r === "Timeout").length;
  const proxy = await Proxy.before(hub);
  const frames = { named: 0, numbered: 0, openings: 0 };
  class Counting extends WebSocket {
    override send(text: string): void {
      if (text.includes('"op":"PUBLISH"')) frames[text.includes('"seq":') ? "numbered" : "named"]++;
      if (text.includes('"producer":')) frames.openings++;
      super.send(text);
    }
  }
  const publisher = await connect(proxy.url, { ...quick, WebSocket: Counting });
  const clients = await Promise.all(Array.from({ length: 3 }, () => connect(proxy.url, quick)));
  while (frames.openings === 0) await publisher.publish("cuts.first", 0);
  await publisher.publish("cuts.first", 0); // after the answer of the hub that gave the producer
  const { named } = frames;
  const handled = new Set<unknown>();
  const everything = signal();
  for (const c of clients) {
    await c.subscribe("cut.*", { group: "g", from: "earliest", concurrency: 4, maxInFlight: 200 }, (d: Delivery) => {
      handled.add(d.payload);
      if (handled.size === total) everything.resolve();
    });
  }
  let answered = 0, cuts = 0, nextCut = 0;
  await Promise.all(Array.from({ length: 8 }, async (_, task) => {
    for (let n = 0; n < total / 8; n += 50) {
      await Promise.all(Array.from({ length: Math.min(50, total / 8 - n) }, (_, i) => publisher.publish(`cut.${task}`, `${task}-${n + i}`).then(() => {
        if (answered++ >= nextCut) {
          nextCut = answered + 100 + random() * total / 20;
          cuts++;
          proxy.cut();
        }
      })));
    }
  }));
  await everything.promise;
  await Promise.all(clients.map((c) => c.drain()));
  const inLog: unknown[] = [];
  for (let task = 0; task < 8; task++) for await (const e of publisher.http.replay(`cut.${task}`)) inLog.push(e.payload);
  assert.equal(inLog.length, total);
  assert.equal(new Set(inLog).size, total);
  assert.equal(handled.size, total);
  assert.ok(cuts >= 5, `${cuts} cuts`);
  assert.equal(frames.named, named, "a publish had an id");
  assert.ok(frames.numbered >= total + cuts, `${frames.numbered} frames with numbers: none was sent again`);
  await publisher.close();
  await proxy.end();
  assert.ok(process.getActiveResourcesInfo().filter((r) => r === "Timeout").length <= before + 1, `timers are left: ${process.getActiveResourcesInfo().join()}`);
});

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { EventClient, HubEventBus, InMemoryEventBus, loadPromClient, metrics, Metrics, PromClient, type CursorPosition, type EventBus, type EventRecord } from "../src/seed.ts";
import { signal, test, TestHub } from "./harness.ts";

let hub: TestHub;
const buses: HubEventBus[] = [];
before(async () => {
  hub = await TestHub.start("--auth-token", "devtoken");
  process.env.EVENTHUB_URL = hub.url; // what a bus without arguments takes
  process.env.EVENTHUB_TOKEN = "devtoken";
});
after(async () => {
  for (const bus of buses) await bus.close();
  await hub.end();
});
function newBus(): InMemoryEventBus {
  const bus = new InMemoryEventBus();
  buses.push(bus);
  return bus;
}

// The two tests of the first sketch, with signals instead of its pauses.
test("publish -> subscribe (earliest) delivers and advances cursor", async () => {
  const bus = newBus();
  const seen: string[] = [];
  const both = signal();
  await bus.subscribe("t.a", "g1", (e) => { if (seen.push(e.payload as string) === 2) both.resolve(); }, { from: "earliest" });
  await bus.publish("t.a", "one");
  await bus.publish("t.a", "two");
  await both.promise;
  assert.deepEqual(seen, ["one", "two"]);
  let cur: CursorPosition | null = null;
  while (!cur?.lastId) cur = await bus.getCursor("t.a", "g1"); // acks are on their way
  assert.ok(cur.lastId);
});

test("nack leaves cursor; event is retried", async () => {
  const bus = newBus();
  let attempts = 0;
  const twice = signal();
  await bus.subscribe("t.b", "g1", () => {
    attempts++;
    if (attempts === 1) throw new Error("boom");
    twice.resolve();
  }, { from: "earliest" });
  await bus.publish("t.b", "x");
  await twice.promise;
  assert.ok(attempts >= 2);
});

test("the example of the first sketch: a durable subscription, a heartbeat, its cursor", async () => {
  const bus = newBus();
  const got = signal<EventRecord>();
  await bus.subscribe("heartbeat.received", "ops", (e) => { got.resolve(e); }, { from: "earliest", batchSize: 100 });
  const sent = await bus.publish("heartbeat.received", { pid: 12345, name: "stt", host: "dev", cpu_pct: 12.3, mem_mb: 256 }, { tags: ["#duck", "#stt"], caused_by: ["boot-1"] });
  const e = await got.promise;
  assert.equal(e.id, sent.id);
  assert.deepEqual([e.tags, e.caused_by], [["#duck", "#stt"], ["boot-1"]]);
  assert.deepEqual(Object.keys(await bus.getCursor("heartbeat.received", "ops") ?? {}).includes("topic"), true);
});

test("manualAck, ack and nack by name, filter, ctx.cursor and setCursor", async () => {
  const bus = newBus();
  const seen: string[] = [];
  let next = signal<EventRecord>();
  const stop = await bus.subscribe("t.m", "g1", async (e, ctx) => {
    seen.push(`${String(e.payload)} ${ctx.attempt}`);
    assert.equal((await ctx.cursor)?.topic, "t.m");
    next.resolve(e);
  }, { from: "earliest", manualAck: true, maxInFlight: 1, filter: (e) => e.payload !== "skip" });
  await bus.publish("t.m", "skip");
  await bus.publish("t.m", "a");
  let e = await next.promise;
  next = signal();
  assert.deepEqual(await bus.nack("t.m", "g1", e.id, "again"), { id: e.id, ok: true });
  e = await next.promise;
  assert.deepEqual(await bus.ack("t.m", "g1", e.id), { id: e.id, ok: true });
  assert.deepEqual(seen, ["a 1", "a 2"]);
  assert.equal((await bus.getCursor("t.m", "g1"))?.lastId, e.id);
  next = signal();
  await bus.setCursor("t.m", "g1", { topic: "t.m" });
  assert.equal((await next.promise).payload, "a");
  await stop();
  assert.equal((await bus.ack("nobody.knows", "g", "x")).ok, false);
});

test("the projector of the second sketch: heartbeats become a state by key", async () => {
  const bus: EventBus = newBus();
  const state = signal<EventRecord>();
  await bus.subscribe("hb", "projector", async (e) => {
    const hb = e.payload as { host: string; name: string; pid: number };
    const processId = `${hb.host}:${hb.name}:${hb.pid}`;
    await bus.publish("state", { processId, last_seen_ts: e.ts, status: "alive" }, { key: processId });
  }, { from: "earliest" });
  await bus.subscribe("state", "ops", (e) => { state.resolve(e); }, { from: "earliest" });
  await bus.publish("hb", { pid: 1, name: "stt", host: "local" });
  const e = await state.promise;
  assert.equal(e.key, "local:stt:1");
});

test("EventClient: publish, subscribe, nack by a throw, modAck, unsubscribe", async () => {
  const client = new EventClient(hub.url, "devtoken");
  const attempts: number[] = [];
  const done = signal();
  await client.subscribe<{ n: number }>("c.a", "g", async (event, ctx) => {
    attempts.push(ctx.attempt);
    assert.equal(event.payload.n, 1);
    assert.ok(ctx.ack_deadline_ms > 0);
    await client.modAck("c.a", "g", event.id, 60_000);
    if (ctx.attempt === 1) throw new Error("boom");
    done.resolve();
  }, { from: "earliest", backoff: { minMs: 1, maxMs: 1 } });
  assert.ok((await client.publish("c.a", { n: 1 })).id);
  await done.promise;
  assert.deepEqual(attempts, [1, 2]);
  await client.unsubscribe("c.a", "g");
  await assert.rejects(client.unsubscribe("c.a", "g"), /subscribe first/);
  await client.close();
  await assert.rejects(new EventClient(hub.url, "wrong").publish("c.a", 1), { code: "bad_token" });
});

test("PromClient: connects with the first call, and types payloads", async () => {
  const client = new PromClient(hub.url, "devtoken");
  const got = signal<number>();
  await client.subscribe<{ cpu: number }>("p.a", "g", (e) => { got.resolve(e.payload.cpu); }, { from: "earliest" });
  await client.publish<{ cpu: number }>("p.a", { cpu: 7 }, { key: "k", headers: { a: "b" } });
  assert.equal(await got.promise, 7);
  await client.close();
});

test("metrics: counted with prom-client, served by expose, and nothing without it", async () => {
  assert.ok(metrics.counters.has("events_published_total"));
  let served = "", type = "";
  const answer = { set: (_: string, value: string) => { type = value; }, end: (body: string) => { served = body; } };
  let handler: ((request: unknown, response: typeof answer) => Promise<void>) | undefined;
  metrics.expose({ get: (path, h) => { assert.equal(path, "/metrics"); handler = h; } });
  await handler?.(undefined, answer);
  assert.match(type, /^text\/plain/);
  assert.match(served, /events_published_total\{topic="t\.a"\} 2/);
  assert.match(served, /events_nacked_total\{topic="t\.b",group="g1"\} 1/);
  metrics.gauge("ws_inflight", "in flight").set(1);
  assert.equal(metrics.histo("delivery_latency_ms", "ms"), metrics.histo("delivery_latency_ms", "ms"));
  const none = new Metrics(await loadPromClient("no-such-package"));
  none.counter("c", "c").inc({ topic: "t" });
  none.gauge("g", "g").set(1);
  none.histo("h", "h").observe({}, 1);
  none.expose({ get: () => { throw new Error("it serves nothing"); } });
});

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before } from "node:test";
import { connect, HubError, retryAfter, terminal, type Delivery, type Gap, type Hub } from "../src/index.ts";
import type { AnyTopics } from "../src/topics.ts";
import { all, once, Proxy, signal, test, TestHub } from "./harness.ts";

let hub: TestHub, c: Hub<AnyTopics>;
before(async () => { hub = await TestHub.start(); c = await hub.connect({ name: "tests" }); });
after(async () => { await c.close(); await hub.end(); });

const isCode = (code: string) => (why: unknown): boolean => why instanceof HubError && why.code === code;

test("a publish has a receipt, and a given id wins", async () => {
  const first = await c.publish("pub.a", { n: 1 }, { key: "k", headers: { "x-a": "b" }, causedBy: ["cause-1"], id: "mine" });
  assert.deepEqual(first, { id: "mine", offset: 1, duplicate: false });
  assert.deepEqual(await c.publish("pub.a", { n: 1 }, { id: "mine" }), { id: "mine", offset: 1, duplicate: true });
  const [event] = await all(c.http.replay("pub.a"));
  assert.equal(event?.key, "k");
  assert.deepEqual(event?.caused_by, ["cause-1"]);
  assert.deepEqual(event?.payload, { n: 1 });
});

test("a batch is one step: one bad event refuses all", async () => {
  const receipts = await c.publishBatch([{ topic: "batch.a", payload: 1 }, { topic: "batch.b", payload: null, key: "k" }]);
  assert.deepEqual(receipts.map((r) => r.offset), [1, 1]);
  await assert.rejects(c.publishBatch([{ topic: "batch.a", payload: 2 }, { topic: "batch..b", payload: 3 }]), (why: HubError) => why.code === "bad_topic" && why.index === 1);
  assert.equal((await c.publish("batch.a", 4)).offset, 2);
  assert.deepEqual(await c.publishBatch([]), []);
});

test("a delayed event has a time and no offset, and can be taken back", async () => {
  const r = await c.delay("later", "x", 3_600_000, { id: "later-1" });
  assert.equal(r.offset, 0);
  assert.ok((r.deliverAt ?? 0) > Date.now() + 3_000_000);
  await c.cancel("later", "later-1");
  await assert.rejects(c.cancel("later", "later-1"), isCode("unknown_id"));
});

test("waitFor resolves when the group has acked, and a timeout says that the event is published", async () => {
  const s = await c.subscribe("wait", { group: "g", from: "earliest" }, () => undefined);
  assert.equal((await c.publish("wait", 1, { waitFor: ["g"], waitMs: 10_000 })).offset, 1);
  await s.pause();
  await assert.rejects(c.publish("wait", 2, { waitFor: ["g"], waitMs: 1 }), (why: HubError) => why.code === "wait_timeout" && why.receipts?.[0]?.offset === 2);
  await s.close();
});

test("expect: a condition that does not hold is a conflict with the present offset", async () => {
  await c.publish("stock", 1, { key: "lamp" });
  await c.publish("stock", 2, { key: "lamp", expect: { keyOffset: 1 } });
  await assert.rejects(c.publish("stock", 3, { key: "lamp", expect: { keyOffset: 1 } }), (why: HubError) => why.code === "conflict" && why.present === 2);
});

test("a resolved handler acks, a thrown error nacks with its message, terminal gives up at once", async () => {
  const seen: [unknown, number][] = [];
  const done = signal();
  const s = await c.subscribe("work", { group: "w", from: "earliest", backoff: { minMs: 1, maxMs: 1 } }, (d: Delivery) => {
    seen.push([d.payload, d.attempt]);
    if (d.payload === "twice" && d.attempt === 1) throw retryAfter(1, new Error("not yet"));
    if (d.payload === "never") throw terminal(new Error("it is broken"));
    if (seen.some(([p]) => p === "last") && seen.some(([p, n]) => p === "twice" && n === 2)) done.resolve(); // in whichever order
  });
  for (const p of ["twice", "never"]) await c.publish("work", p);
  await c.publish("work", "last");
  await done.promise;
  await s.drain();
  assert.deepEqual(seen.filter(([p]) => p === "twice"), [["twice", 1], ["twice", 2]]);
  assert.deepEqual(seen.filter(([p]) => p === "never"), [["never", 1]]);
  for (let letters = 0; letters === 0;) for await (const letter of c.http.deadLetters("work")) { letters++; assert.match(letter.reason ?? "", /it is broken/); }
  const g = await c.getCursor("work", "w");
  assert.equal(g?.offset, 3);
});

test("handlers run at once as concurrency says, and one by one without it", async () => {
  for (const concurrency of [1, 3]) {
    let running = 0, most = 0, handled = 0;
    const done = signal();
    const s = await c.subscribe(`conc.${concurrency}`, { group: "g", from: "earliest", concurrency }, async () => {
      most = Math.max(most, ++running);
      await new Promise((r) => setImmediate(r));
      running--;
      if (++handled === 20) done.resolve();
    });
    await c.publishBatch(Array.from({ length: 20 }, (_, n) => ({ topic: `conc.${concurrency}`, payload: n })));
    await done.promise;
    await s.close();
    assert.equal(most, concurrency);
  }
});

test("a lease is extended while a handler runs longer than it", async () => {
  const c2 = await hub.connect();
  let calls = 0, attempt = 0;
  const begun = signal(), release = signal();
  const s = await c2.subscribe("long", { group: "g", from: "earliest", ackTimeoutMs: 1000 }, async (d: Delivery) => { calls++; release.promise.then(() => { attempt = d.attempt; }, () => undefined); begun.resolve(); await release.promise; });
  await c2.publish("long", 1);
  await begun.promise;
  await new Promise((r) => setTimeout(r, 2600)); // the lease would have ended twice
  release.resolve();
  await s.drain();
  assert.equal(calls, 1);
  assert.equal(attempt, 1); // a lease that had ended would have come again, with another attempt
  assert.equal((await c2.getCursor("long", "g"))?.offset, 1);
  await c2.close();
});

test("a handler keeps its event where the clock is set back", async () => {
  const c2 = await hub.connect(), { now } = Date;
  let attempt = 0;
  const begun = signal(), release = signal();
  const s = await c2.subscribe("set.back", { group: "g", from: "earliest", ackTimeoutMs: 1000, backoff: { minMs: 1, maxMs: 1 } }, async (d: Delivery) => { begun.resolve(); await release.promise; attempt = d.attempt; });
  await c2.publish("set.back", 1);
  await begun.promise;
  try {
    Date.now = () => now() - 3_600_000;
    await new Promise((r) => setTimeout(r, 2600)); // the lease would have ended twice
    release.resolve();
    await s.drain();
  } finally {
    Date.now = now;
  }
  assert.equal(attempt, 1); // of a lease that ran out the event would have come again
  assert.equal((await c2.getCursor("set.back", "g"))?.offset, 1);
  await c2.close();
});

test("what waits while a subscription is drained goes to another member, and none of its attempts counts", async () => {
  const c2 = await hub.connect(), options = { group: "g", from: "earliest", ackTimeoutMs: 1000, maxAttempts: 1, backoff: { minMs: 1, maxMs: 1 } } as const;
  const begun = signal(), release = signal(), done = signal();
  await c2.publishBatch([1, 2, 3].map((n) => ({ topic: "drained", payload: n })));
  const s = await c2.subscribe("drained", options, async () => { begun.resolve(); await release.promise; });
  await begun.promise;
  const drained = s.drain();
  await c2.publish("drained", 4);
  await new Promise((r) => setTimeout(r, 2600)); // leases would have ended twice
  release.resolve();
  await drained;
  const seen: unknown[] = [];
  const next = await c2.subscribe("drained", options, (d: Delivery) => { if (seen.push([d.payload, d.attempt]) === 3) done.resolve(); });
  await Promise.race([done.promise, new Promise((r) => setTimeout(r, 5000))]);
  assert.deepEqual(seen, [[2, 1], [3, 1], [4, 1]]);
  await next.drain();
  assert.deepEqual(await all(c2.http.deadLetters("drained")), []);
  await c2.close();
});

test("a delay that is no whole number, or too long, is one that the hub takes", async () => {
  const c2 = await hub.connect(), delays = [0.5, 1.25, -3, NaN];
  const done = signal(), began = Date.now();
  const s = await c2.subscribe("fractions", { group: "g", from: "earliest", ackTimeoutMs: 30_000, backoff: { minMs: 1, maxMs: 1 } }, (d: Delivery) => {
    const delay = delays[d.attempt - 1];
    if (delay !== undefined) throw retryAfter(delay, new Error("not yet"));
    done.resolve();
  });
  await c2.publish("fractions", 1);
  await done.promise;
  assert.ok(Date.now() - began < 15_000, "a nack was refused: the lease ran out");
  await s.drain();
  await c2.publish("fractions.long", 1);
  for await (const d of c2.deliveries("fractions.long", { group: "g", from: "earliest" })) {
    await d.nack(retryAfter(Infinity, new Error("never, or nearly")));
    break;
  }
  await c2.close();
});

test("a loop acks by hand, and leaving it gives back what it did not settle", async () => {
  await c.publishBatch([1, 2, 3].map((n) => ({ topic: "loop", payload: n })));
  for await (const d of c.deliveries("loop", { group: "g", from: "earliest" })) {
    if (d.payload === 2) break;
    await d.ack();
    await assert.rejects(d.ack(), isCode("lease_lost"));
  }
  const seen: unknown[] = [];
  for await (const d of c.deliveries("loop", { group: "g" })) {
    seen.push([d.payload, d.attempt]);
    await d.ack();
    if (d.payload === 3) break;
  }
  assert.deepEqual(seen, [[2, 1], [3, 1]]);
});

test("a loop ends with the reason of its signal, and a subscription that is refused with the hub's", async () => {
  const stop = new AbortController();
  await c.publish("loop2", 1);
  await assert.rejects((async () => {
    for await (const d of c.deliveries("loop2", { group: "g", from: "earliest", signal: stop.signal })) { await d.ack(); stop.abort(new Error("enough")); }
  })(), /enough/);
  await assert.rejects((async () => { for await (const d of c.deliveries("a..b", { group: "g" })) void d; })(), isCode("bad_topic"));
});

test("a loop that is left before it begins has no event, and is no member", async () => {
  await c.publish("left", 1);
  const it = c.deliveries("left", { group: "g", from: "earliest" });
  assert.deepEqual(await it.return?.(), { done: true, value: undefined });
  assert.deepEqual(await it.next(), { done: true, value: undefined });
  assert.equal(await c.getCursor("left", "g"), null);
});

test("ack and nack by name, and d.cursor()", async () => {
  const got: Delivery[] = [];
  const first = signal(), second = signal();
  const s = await c.subscribe("named", { group: "g", from: "earliest", backoff: { minMs: 1, maxMs: 1 } }, async (d: Delivery) => {
    got.push(d);
    if (got.length === 1) first.resolve(); else second.resolve();
    await new Promise<void>((resolve) => { d.signal.addEventListener("abort", () => { resolve(); }); });
  });
  await c.publish("named", 1, { id: "n-1" });
  await first.promise;
  assert.equal((await got[0]?.cursor())?.offset, 0);
  await c.ack("named", "g", "n-1");
  assert.equal((await c.getCursor("named", "g"))?.offset, 1);
  await s.close();
  assert.equal(await c.getCursor("named", "no-such-group"), null);
});

test("setCursor moves the group: what was handled comes again, and the first says sought", async () => {
  const seen: [unknown, boolean][] = [];
  let wait = signal();
  const s = await c.subscribe("seek", { group: "g", from: "earliest" }, (d: Delivery) => { seen.push([d.payload, d.sought]); if (d.payload === 2) wait.resolve(); });
  await c.publishBatch([1, 2].map((n) => ({ topic: "seek", payload: n })));
  await wait.promise;
  await s.drain();
  wait = signal();
  await c.setCursor("seek", "g", { offset: 1 });
  const t = await c.subscribe("seek", { group: "g" }, (d: Delivery) => { seen.push([d.payload, d.sought]); if (d.payload === 2) wait.resolve(); });
  await wait.promise;
  assert.deepEqual(seen.map(([p]) => p), [1, 2, 1, 2]);
  await t.close();
  // A member that is there while the group moves is notified.
  const moved = signal();
  const u = await c.subscribe("seek", { group: "g" }, (d: Delivery) => { if (d.sought) moved.resolve(); });
  await c.setCursor("seek", "g", "earliest");
  await moved.promise;
  await u.close();
});

test("transform publishes with the ack, under ids that are the same however often", async () => {
  const done = signal();
  const s = await c.transform("orders", { group: "billing", from: "earliest" }, (d: Delivery) => [{ topic: "bills", payload: { of: d.payload } }]);
  const t = await c.subscribe("bills", { from: "earliest" }, () => { done.resolve(); });
  await c.publish("orders", 17, { headers: { traceparent: "00-a-b-01", other: "x" }, id: "order-17" });
  await done.promise;
  await s.drain();
  await t.close();
  const [bill] = await all(c.http.replay("bills"));
  // As eventhub.ResultID in Go makes it.
  assert.equal(bill?.id, `${createHash("sha256").update("billing\0orders").digest("hex").slice(0, 24)}-1-0`);
  assert.deepEqual([bill?.payload, bill?.caused_by, bill?.headers], [{ of: 17 }, ["order-17"], { traceparent: "00-a-b-01" }]);
  assert.equal((await c.getCursor("orders", "billing"))?.offset, 1);
});

test("a replay says what compaction may have removed, and no keys have no state", async () => {
  await c.publishBatch(["x", "y", "x", "y"].map((key, n) => ({ topic: "past.a", key, payload: n })));
  const replay = async (): Promise<unknown[]> => {
    const seen: unknown[] = [];
    for await (const e of c.http.replay("past.a", { onGap: (g) => seen.push([g.topic, g.after, g.first, g.compacted]) })) seen.push(e.payload);
    return seen;
  };
  assert.deepEqual(await replay(), [0, 1, 2, 3]);
  hub.cli("topic", "set", "past.a", "--compact", "--compact-min-age", "1s", "--compact-grace", "1s", "--url", hub.url);
  let seen = await replay();
  for (const until = Date.now() + 30_000; seen.length !== 3 && Date.now() < until; seen = await replay()) await new Promise((r) => setTimeout(r, 20));
  assert.deepEqual(seen, [["past.a", 0, 1, 4], 2, 3]);
  assert.deepEqual((await all(c.http.state("past.a", { keys: ["y", "none"] }))).map((e) => e.key), ["y"]);
  assert.deepEqual(await all(c.http.state("past.a", { keys: [] })), []);
});

test("a subscription whose concurrency is 0 has that of the default", async () => {
  const done = signal();
  const s = await c.subscribe("one.a", { group: "g", concurrency: 0 }, () => { done.resolve(); });
  await c.publish("one.a", 1);
  await done.promise;
  await s.drain();
});

test("pause and resume: nothing comes in between, over a lost connection too", async () => {
  const proxy = await Proxy.before(hub);
  const c2 = await connect(proxy.url, { backoff: { minMs: 10, maxMs: 50 }, warn: () => undefined });
  const seen: unknown[] = [];
  let got = signal();
  const s = await c2.subscribe("paused", { from: "earliest" }, (d: Delivery) => { seen.push(d.payload); if (d.payload === 2) got.resolve(); });
  await s.pause();
  await c.publish("paused", 1);
  const open = once(c2, "open");
  proxy.cut();
  await open;
  await c2.publish("other", 0); // answered: what was said before, the PAUSE too, has been done
  seen.length = 0; // a few may come right after a lost connection
  await c.publish("paused", 2);
  await c2.publish("other", 1); // its answer comes after what would have been delivered
  assert.deepEqual(seen, []);
  got = signal();
  await s.resume();
  await got.promise;
  assert.equal(seen.at(-1), 2);
  await c2.close();
  await proxy.end();
});

test("a tail conflates, and is told of a gap", async () => {
  await c.publishBatch(Array.from({ length: 10 }, (_, n) => ({ topic: "gap.a", payload: n })));
  hub.cli("topic", "trim", "gap.a", "--before", "6", "--apply", "--url", hub.url);
  const gaps: Gap[] = [];
  const seen: unknown[] = [];
  const done = signal();
  const s = await c.subscribe("gap.a", { from: "offset", offset: 3, onGap: (g) => gaps.push(g) }, (d: Delivery) => { seen.push(d.payload); if (d.payload === 9) done.resolve(); });
  await done.promise;
  await s.close();
  assert.deepEqual(seen, [5, 6, 7, 8, 9]);
  assert.equal(gaps.length, 1);
  assert.equal(gaps[0]?.first, 6);
  const newest: unknown[] = [];
  const conflated = signal();
  const t = await c.subscribe("conf", { conflate: { everyMs: 50 } }, (d: Delivery) => { newest.push(d.payload); if (d.payload === 99) conflated.resolve(); });
  await c.publishBatch(Array.from({ length: 100 }, (_, n) => ({ topic: "conf", payload: n, key: "k" })));
  await conflated.promise;
  assert.ok(newest.length < 100, `${newest.length} of 100 came`);
  await t.close();
});

test("a second subscription of the same name is refused, and a new one after close is not", async () => {
  const s = await c.subscribe("twice", { group: "g" }, () => undefined);
  await assert.rejects(c.subscribe("twice", { group: "g" }, () => undefined), isCode("already_subscribed"));
  void s.close();
  const t = await c.subscribe("twice", { group: "g" }, () => undefined);
  await t.close();
  await assert.rejects(c.subscribe("nobody.has.this", { group: "g", create: false }, () => undefined), isCode("unknown_id"));
});

test("a group that is deleted ends its subscription with a reason", async () => {
  const s = await c.subscribe("ends", { group: "g" }, () => undefined);
  await c.http.call("DELETE /v1/topics/{topic}/groups/{group}", { params: { topic: "ends", group: "g" } });
  await assert.rejects(s.closed, isCode("not_subscribed"));
});

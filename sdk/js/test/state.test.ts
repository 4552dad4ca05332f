import assert from "node:assert/strict";
import { after, before } from "node:test";
import { connect, HubError, type StateMark } from "../src/index.ts";
import { stateMap, type StateChange } from "../src/state.ts";
import { once, Proxy, seeded, signal, test, TestHub } from "./harness.ts";

let hub: TestHub;
before(async () => { hub = await TestHub.start(); });
after(async () => { await hub.end(); });
const quick = { backoff: { minMs: 5, maxMs: 50 }, warn: (): void => undefined };

interface Topics { stock: { left: number } | null; moves: { left: number } | null; walk: number | null }

test("a loop begins with the state, is told its mark, and goes on with what comes after", async () => {
  const c = await connect<Topics>(hub.url, quick);
  for (const [key, left] of [["lamp", 4], ["chair", 2], ["lamp", 3]] as const) await c.publish("stock", { left }, { key });
  await c.publish("stock", null, { key: "chair" });
  const marks: StateMark[] = [], seen: unknown[] = [];
  for await (const d of c.deliveries("stock", { from: "snapshot", onState: (m) => { marks.push(m); void c.publish("stock", { left: 9 }, { key: "desk" }); } })) {
    seen.push([d.key, d.payload, d.state, d.stateBegins]);
    if (!d.state) break;
  }
  assert.deepEqual(seen, [["lamp", { left: 3 }, true, true], ["desk", { left: 9 }, false, false]]);
  assert.deepEqual(marks, [{ topic: "stock", offset: 4, count: 1 }]);
  await assert.rejects(c.deliveries("stock", { from: "snapshot", conflate: { everyMs: 100 } }).next(), (why: HubError) => why.code === "bad_request");
  await c.close();
});

test("a map is loaded, kept up to date, told of changes, and closed", async () => {
  const c = await connect<Topics>(hub.url, quick);
  await c.publishBatch([{ topic: "moves", payload: { left: 1 }, key: "a" }, { topic: "moves", payload: { left: 2 }, key: "b" }, { topic: "moves", payload: { left: 3 }, key: "other" }]);
  const told: string[] = [], slow = signal();
  const map = await stateMap(c, "moves", {
    onChange: async (x: StateChange<{ left: number } | null>) => {
      told.push(`${x.key} ${x.old?.left ?? "-"} ${x.new?.left ?? "-"} ${x.added ? "added" : ""}${x.removed ? "removed" : ""}`.trim());
      if (x.key === "a" && x.old) await slow.promise;
    },
  });
  await map.waitLoaded();
  assert.equal(map.loaded, true);
  assert.deepEqual([...map].sort(), [["a", { left: 1 }], ["b", { left: 2 }], ["other", { left: 3 }]]);
  await c.publish("moves", { left: 10 }, { key: "a" }); // while it is told of this one
  for (const left of [20, 21, 22]) await c.publish("moves", { left }, { key: "b" });
  const last = await c.publish("moves", null, { key: "other" });
  await map.waitOffset(last.offset);
  assert.deepEqual([map.get("a"), map.get("b"), map.has("other"), map.size, map.offset], [{ left: 10 }, { left: 22 }, false, 2, last.offset]);
  slow.resolve();
  while (told.length < 6) await new Promise((r) => setImmediate(r));
  assert.deepEqual(told, ["a - 1 added", "b - 2 added", "other - 3 added", "a 1 10", "b 2 22", "other 3 - removed"]);
  const waiting = assert.rejects(map.waitOffset(last.offset + 1), (why: HubError) => why.code === "closed");
  await map.close();
  await waiting;
  await map.closed;
  assert.equal(map.get("a")?.left, 10);
  const another = await stateMap(c, "moves", { keys: "oth*" });
  await another.waitLoaded();
  assert.equal(another.size, 0);
  const ended = assert.rejects(another.closed, (why: HubError) => why.code === "closed");
  await c.close();
  await ended;
});

test("a map is the state through cuts and a hub that is killed and started again", async () => {
  const seed = Number(process.env.EVENTHUB_SEED ?? Date.now() % 1e9), random = seeded(seed), own = await TestHub.start(), proxy = await Proxy.before(own);
  console.log(`seed ${seed}`);
  const c = await connect<Topics>(proxy.url, quick), direct = await connect<Topics>(own.url, quick);
  const seen = new Map<string, number>();
  const map = await stateMap(c, "walk", {
    onChange: (x) => {
      assert.equal(x.added, !seen.has(x.key));
      if (x.removed) seen.delete(x.key);
      else {
        assert.ok(typeof x.new === "number" && x.new > (seen.get(x.key) ?? -1), "a key went back");
        seen.set(x.key, x.new);
      }
    },
  });
  const expected = new Map<string, number>();
  for (let n = 0; n < 600; n++) {
    const key = `k${Math.floor(random() * 50)}`, gone = random() < 0.2;
    const { offset } = await direct.publish("walk", gone ? null : n, { key });
    if (gone) expected.delete(key); else expected.set(key, n);
    if (random() < 0.03) proxy.cut();
    if (n % 200 === 199) {
      const back = once(direct, "open");
      await own.stop(n === 199 ? "SIGKILL" : "SIGTERM");
      await own.run();
      await back;
    }
    if (n % 100 === 99) await map.waitOffset(offset);
    if (n % 100 === 99) assert.deepEqual(new Map(map), expected);
  }
  while (seen.size !== expected.size) await new Promise((r) => setImmediate(r));
  assert.deepEqual(seen, expected);
  await map.close();
  await Promise.all([c.close(), direct.close()]);
  await proxy.end();
  await own.end();
});

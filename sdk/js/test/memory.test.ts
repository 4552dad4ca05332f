import assert from "node:assert/strict";
import { after, before } from "node:test";
import { connect, type Hub } from "../src/index.ts";
import { stateMap } from "../src/state.ts";
import type { AnyTopics } from "../src/topics.ts";
import { once, Proxy, signal, test, TestHub } from "./harness.ts";

/** How many bytes larger the heap may be after 100,000 events, while the closed client and its subscriptions are still there. It grows by 0.2 to 0.9 MiB; a number left for each event has more than 2. */
const keeps = 2 << 20;

let hub: TestHub;
before(async () => { hub = await TestHub.start(); });
after(async () => { await hub.end(); });

function heap(): number {
  const { gc } = globalThis as { gc?: () => void };
  assert.ok(gc, "run node with --expose-gc");
  for (let i = 0; i < 4; i++) gc();
  return process.memoryUsage().heapUsed;
}

const active = (what: RegExp): string => process.getActiveResourcesInfo().filter((r) => what.test(r)).sort().join();

/** All kinds of subscriptions, so many publishes, lost connections, an end; what is given back is closed. */
async function live(topic: string, count: number): Promise<[Hub<AnyTopics>, ...unknown[]]> {
  const proxy = await Proxy.before(hub);
  const c = await connect(proxy.url, { backoff: { minMs: 5, maxMs: 50 }, warn: () => undefined });
  let handled = 0, followed = 0;
  const all = signal(), seen = signal();
  const group = await c.subscribe(topic, { group: "g", from: "earliest", concurrency: 100, maxInFlight: 1000 }, async (d) => {
    if (d.offset % 2 === 0) await Promise.resolve();
    if (++handled === count) all.resolve();
  });
  const tail = await c.subscribe(`${topic}.**`, { from: "earliest" }, () => { if (++followed === count) seen.resolve(); });
  const map = await stateMap(c, topic, { onChange: () => undefined });
  const stop = new AbortController();
  let next = 0;
  await Promise.all(Array.from({ length: 256 }, async (_, lane) => {
    for (let n = next++; n < count; n = next++) {
      await c.publish(topic, "x".repeat(50), { key: `k${n % 100}`, ...(lane < 8 ? { signal: stop.signal } : {}) });
      if (n % Math.floor(count / 4) === 1) proxy.cut();
    }
  }));
  await Promise.all([all.promise, seen.promise]);
  await tail.close();
  await map.waitOffset(count);
  const away = once(c, "connecting");
  proxy.refuses = true; // it is closed between two attempts to connect
  proxy.cut();
  await away;
  const waiting = assert.rejects(c.publish(topic, 0));
  await c.close();
  await waiting;
  await proxy.end();
  return [c, group, tail, map];
}

test("after 100,000 events and close, memory, timers and sockets are what they were before", async () => {
  const first = await live("memory.first", 4000); // what is made once
  const timers = active(/Timeout|Immediate/), sockets = active(/TCP|Pipe/);
  const before = heap();
  const all = await live("memory.all", 100_000);
  assert.equal(active(/Timeout|Immediate/), timers);
  while (active(/TCP|Pipe/) !== sockets) await new Promise((r) => setImmediate(r)); // the other ends close too
  const grown = heap() - before;
  console.log(`the heap grew by ${Math.round(grown / 1024)} KiB`);
  assert.ok(grown < keeps, `the heap grew by ${grown} bytes; at most ${keeps} are expected`);
  assert.deepEqual([first.length, first[0].state, all.length, all[0].state], [4, "closed", 4, "closed"]);
}, 180_000);

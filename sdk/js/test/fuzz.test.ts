import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before } from "node:test";
import { WebSocketServer, type WebSocket } from "ws";
import { connect, HubError } from "../src/index.ts";
import { test } from "./harness.ts";

// A server that is no hub, or one with a fault, may send anything. The SDK takes it for an answer, or gives the connection up;
// whoever waits gets an error of the SDK, and nothing else of the program notices.

const rounds = Number(process.env.EVENTHUB_JS_FUZZ ?? 300);
const seed = Number(process.env.EVENTHUB_JS_SEED ?? Date.now() % 1_000_000);

/** Numbers from a seed (mulberry32). */
function random(from: number): (n: number) => number {
  let state = from;
  return (n) => {
    state = state + 0x6d2b79f5 | 0;
    let t = Math.imul(state ^ state >>> 15, 1 | state);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
    return ((t ^ t >>> 14) >>> 0) % n;
  };
}

const event = { offset: 1, ts: 1, id: "e", topic: "t", partition: 0, payload: { a: 1 } };
const whole: object[] = [
  { op: "EVENT", topic: "t", group: "g", event, ctx: { attempt: 1, max_attempts: 5, ack_deadline_ms: 30000, lease: "1-2-3" } },
  { op: "EVENTS", topic: "t", group: "g", events: [{ event, ctx: { attempt: 1, lease: "1-2-4" } }, { event: { ...event, offset: 2 } }] },
  { op: "OK", corr: "1", id: "i", offset: 1 },
  { op: "OK", corr: "2", ids: ["i", "j"], offsets: [1, 2], duplicates: [0] },
  { op: "OK", corr: "3", gaps: [{ topic: "t", after: 1, first: 5 }], ended: [{ topic: "t", ts: 1, cursor: 1 }] },
  { op: "ERR", corr: "4", code: "overloaded", msg: "too much", retry_after_ms: 1 },
  { op: "ENDED", topic: "t", group: "g", code: "gone", msg: "deleted" },
];
const odd: unknown[] = [null, true, false, 0, -1, 1e308, 2 ** 53, 0.5, "", "x", "__proto__", [], {}, [null], [[]], { op: "OK" }, "\u0000", "\ud83d"];

/** A frame with something else in places, or no frame. */
function frameOf(pick: (n: number) => number): string {
  if (pick(12) === 0) return ["", "[]", "null", "{", '"x"', "{}", '{"op":7}', "\u0000", '{"op":"OK","op":"ERR"}', "1".repeat(400)][pick(10)] ?? "";
  const change = (value: unknown, depth: number): unknown => {
    if (depth > 0 && pick(6) === 0) return odd[pick(odd.length)];
    if (Array.isArray(value)) return value.map((v) => change(v, depth + 1)).slice(0, pick(8) === 0 ? 0 : undefined);
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).filter(() => pick(15) > 0).map(([name, v]) => [name, name === "op" && pick(20) > 0 ? v : change(v, depth + 1)]));
  };
  const f = change(whole[pick(whole.length)], 0) as { corr?: unknown };
  if (typeof f.corr === "string") f.corr = String(pick(12));
  return JSON.stringify(f);
}

const wrong: unknown[] = [];
const note = (why: unknown): void => { wrong.push(why); };
before(() => { process.on("unhandledRejection", note).on("uncaughtException", note); });
after(() => { process.off("unhandledRejection", note).off("uncaughtException", note); });

test("whatever a server sends, only those who wait for it get an error", async () => {
  console.log(`# seed ${seed}, ${rounds} rounds`);
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  await once(server, "listening");
  const pick = random(seed);
  let sent: string[] = [];
  server.on("connection", (ws: WebSocket) => {
    let first = true;
    ws.on("error", () => undefined);
    ws.on("message", (data: Buffer) => {
      const { corr } = JSON.parse(data.toString()) as { corr?: string };
      if (first) {
        first = false;
        ws.send(JSON.stringify({ op: "OK", corr, hub: "eventhub", version: "1", protocol: 1, durability: "sync", limits: { max_frame_bytes: 1_310_720, max_payload_bytes: 1_048_576, max_subscriptions: 128 } }));
        return;
      }
      if (pick(3) > 0) ws.send(JSON.stringify({ op: "OK", corr, id: "i", offset: 1 }));
      for (let n = pick(4); n >= 0; n--) {
        const text = frameOf(pick);
        sent.push(text);
        ws.send(text);
      }
      if (pick(4) === 0) ws.close(1001);
    });
  });
  const url = `ws://127.0.0.1:${(server.address() as { port: number }).port}`;
  for (let round = 0; round < rounds && wrong.length === 0; round++) {
    sent = [];
    const c = await connect(url);
    const asked = [c.subscribe("t", { group: "g" }, () => undefined), c.subscribe("t", {}, () => undefined), c.publish("t", 1), c.publishBatch([{ topic: "t", payload: 1 }, { topic: "t", payload: 2 }])]
      .map((p) => p.then(() => undefined, (why: unknown) => { if (!(why instanceof HubError)) wrong.push(why); }));
    await Promise.race([Promise.all(asked), new Promise((r) => setTimeout(r, 20))]); // what is not answered ends with the connection
    const closed = c.close();
    for (const ws of server.clients) ws.terminate();
    await closed.catch(note);
    await Promise.all(asked);
    await new Promise((r) => setImmediate(r));
  }
  server.close();
  assert.deepEqual(wrong.map((why) => why instanceof Error ? why.stack : why), [], `seed ${seed}: after ${JSON.stringify(sent)}`);
});

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before } from "node:test";
import { InMemoryEventBus } from "../src/seed.ts";
import { signal, test, TestHub } from "./harness.ts";

const root = process.env.SDK_ROOT ?? "";
let hub: TestHub;
before(async () => {
  hub = await TestHub.start("--auth-token", "devtoken");
  process.env.WS_TOKEN = "devtoken";
});
after(async () => {
  delete process.env.WS_TOKEN;
  await hub.end();
});

/** Compiles a program by the real compiler, and runs it with these names; its value is that of `value`. */
function run(program: string, names: Record<string, unknown>): unknown {
  const includes = ["event", "ws", "acl"].map((name) => `(include ${JSON.stringify(`${root}sibilant/${name}`)})`).join("\n");
  const file = hub.file("program.sibilant", `${includes}\n(var value undefined)\n${program}\n`);
  const js = execFileSync(process.execPath, [`${root}node_modules/sibilant/bin/sibilant`, "-f", file], { encoding: "utf8" });
  return (new Function(...Object.keys(names), `${js}\nreturn value;`) as (...values: unknown[]) => unknown)(...Object.values(names));
}

test("sibilant: a topic, a subscription with a handler and a publish, against a real hub", async () => {
  const told = signal<unknown>();
  let bus: InMemoryEventBus | undefined;
  const published = await run(`
    (var TOPIC-HEARTBEAT (define-topic "heartbeat.received" {:retentionDays 3}))
    (defn on-heartbeat [e ctx] (told { payload e.payload key e.key }))
    (assign value (with-ws-bus bus port
      (keep bus)
      (.then (subscribe! bus TOPIC-HEARTBEAT.name "ops" on-heartbeat :from "earliest" :batch-size 100)
        (#() (publish! bus TOPIC-HEARTBEAT.name {:pid 42 :name "stt"} :key "k")))))`,
  { InMemoryEventBus, port: hub.port, told: told.resolve, keep: (made: InMemoryEventBus) => { bus = made; } }) as { topic: string };
  assert.equal(published.topic, "heartbeat.received");
  assert.deepEqual(await told.promise, { payload: { pid: 42, name: "stt" }, key: "k" });
  await bus?.close();
});

test("sibilant: topics, and the answer to a token", () => {
  assert.deepEqual(run(`(assign value [ (define-topic "a" {:retentionDays 3}) (define-topic "b") (ws-auth "devtoken") (ws-auth "x") ])`, {}), [
    { name: "a", opts: { retentionDays: 3 } }, { name: "b", opts: {} }, { ok: true }, { ok: false, code: "bad_token", msg: "no" }]);
});

test("sibilant: policies have the JSON of a policy, and a hub obeys them", async () => {
  const [literal, scopes] = run(`(assign value [
    { rules [ (allow "publish" "heartbeat.*" "process.**") (allow "subscribe" "process.**") ] }
    (scopes-to-policy [ "publish:heartbeat.*" "subscribe:process.**" ]) ])`, {}) as [object, object];
  assert.equal(JSON.stringify(literal), '{"rules":[{"effect":"allow","action":"publish","topics":["heartbeat.*","process.**"]},{"effect":"allow","action":"subscribe","topics":["process.**"]}]}');
  assert.equal(JSON.stringify(scopes), '{"rules":[{"effect":"allow","action":"publish","topics":["heartbeat.*"]},{"effect":"allow","action":"subscribe","topics":["process.**"]}]}');
  for (const [policy, allowed] of [[literal, true], [scopes, false]] as const) {
    const file = hub.file("tokens.yaml", JSON.stringify({ tokens: [{ name: "sib", token: "sibilant-secret-0123456789", policy }] }));
    const guarded = await TestHub.start("--auth-tokens-file", file);
    try {
      const c = await guarded.connect({ token: "sibilant-secret-0123456789" });
      await c.publish("heartbeat.received", 1);
      await assert.rejects(c.publish("orders", 1), { code: "forbidden" });
      const last = c.publish("process.state", 1);
      if (allowed) await last; else await assert.rejects(last, { code: "forbidden" });
      await c.close();
    } finally {
      await guarded.end();
    }
  }
});

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
// @ts-expect-error: the console is JavaScript as browsers load it
import { hubNow } from "../../../ops/console/static/clock.js";
// @ts-expect-error: so is this
import { Live } from "../../../ops/console/static/live.js";
// @ts-expect-error: and this
import { ago, blocked, bytes, command, explain, preview, rate, settingsCommand, span } from "../../../ops/console/static/words.js";
import { test } from "./harness.ts";

// The sentences of the console: each thing that the hub can say has one, also those that no test makes in a hub.

const now = 1_800_000_000_000;
const member = { transport: "ws", name: "ann 127.0.0.1:5", client: "billing" };
const source = (name: string): string => readFileSync(new URL(`../../ops/console/${name}`, `file://${process.env.SDK_ROOT ?? ""}`), "utf8");

/** All that an entry can have. */
const entry = (kind: string): object => ({
  kind, severity: "critical", topic: "orders", group: "worker", lag: 1_234, oldest_ts: now - 125_000, members: 2, letters: 3, max_attempts: 5, name: "the-name", text: "the text", seconds: 4_000, bytes: 3 << 20, needed_bytes: 5 << 20,
  blocked_by: { kind, key: "customer-7", offset: 41, id: "e", state: "leased", member, since_ts: now - 61_000 },
  event: { offset: 42, attempt: 3, state: "waiting", due_ts: now + 9_500, since_ts: now - 61_000, member, history: [{ attempt: 3, why: "nacked", reason: "no such street" }] },
});

test("each kind of what is wrong has a sentence, a title and what helps", () => {
  const go = source("wrong.go");
  const kinds = new Set([...go.matchAll(/Kind: "(\w+)"/g), ...go.matchAll(/kind == "(\w+)"/g), ...go.matchAll(/kind, w\.Event(?:, w\.Severity)? = "(\w+)"/g)].map((m) => m[1] ?? ""));
  assert.ok(kinds.size >= 19, [...kinds].join(" "));
  for (const kind of kinds) {
    const { title, text, help } = explain(entry(kind), now) as Record<string, string>;
    assert.ok(title && title !== kind && text && text.length > 20 && help, `${kind}: ${title}: ${text} ${help}`);
    assert.doesNotMatch(`${title} ${text} ${help}`, /undefined|NaN|null|object/, kind);
  }
  assert.equal(explain(entry("window"), now).text, "The group has read as far above its cursor as it may. The cursor stands at event 41, which has been with billing for 1 min 1 s. 1,234 events are not done, the oldest for 2 min 5 s.");
  assert.equal(explain({ ...entry("disk_soon") }, now).text, "The disk is full in 1 h 6 min, if it goes on like this: 3.0 MiB are free.");
  assert.equal(explain(entry("dead_letters"), now).link, "#/dlq/orders/worker");
  assert.equal(explain(entry("poison"), now).link, "#/groups/orders/worker");
});

test("each kind of blocked_by has a sentence", () => {
  const kinds = ["paused", "filter", "no_members", "members_full", "members_paused", "window", "key"];
  for (const kind of kinds) {
    const text = blocked((entry(kind) as { blocked_by: object }).blocked_by, now) as string;
    assert.ok(text.length > 20 && !/undefined|NaN|Deliveries wait/.test(text), `${kind}: ${text}`);
  }
  assert.equal(blocked(undefined, now), "");
});

test("figures as people read them", () => {
  assert.deepEqual([0, 999, 1_000, 61_000, 3_600_000, 90_061_000, -5].map(span), ["less than 1 s", "1 s", "1 s", "1 min 1 s", "1 h", "1 d 1 h", "less than 1 s"]);
  assert.deepEqual([0, 999, 1536, 5 * 2 ** 30].map(bytes), ["0 B", "999 B", "1.5 KiB", "5.0 GiB"]);
  assert.deepEqual([undefined, 0, 0.25, 9.96, 1234.5].map(rate), ["…", "0", "0.3", "10.0", "1,235"]);
  assert.equal(ago(now - 500, now), "just now");
  assert.equal(ago(now - 5_000, now), "5 s ago");
  assert.equal(ago(0, now), "never");
  assert.equal(preview({ a: "x".repeat(300) }).length, 161);
});

test("a name that turns the direction of writing turns nothing of the sentence around it", () => {
  const turned = blocked({ kind: "key", key: "\u202eevil", offset: 4, state: "leased", since_ts: now - 5_000, member: { client: "\u202ereverse" } }, now) as string;
  assert.match(turned, /“\u2068\u202eevil\u2069” are held .* has been with \u2068\u202ereverse\u2069 for 5 s\.$/);
  assert.match(blocked((entry("key") as { blocked_by: object }).blocked_by, now) as string, /“customer-7”/);
});

test("the lines and the hub's time go on where its clock is set back", () => {
  (globalThis as { document?: unknown }).document = { hidden: false, addEventListener: () => undefined };
  const none = (): void => undefined;
  const live = new Live(none, none, none) as { take(m: object): void; history: { ts: number[]; lag: number[] } };
  for (const [i, ts] of [0, 1_000, 1_000, 2_000, -3_600_000, -3_599_000].entries()) live.take({ ts: now + ts, run: 1, totals: { lag: i } });
  assert.deepEqual(live.history.ts.map((s) => s * 1000 - now), [-3_600_000, -3_599_000]);
  assert.deepEqual(live.history.lag, [4, 5]);
  assert.ok(Math.abs((hubNow() as number) - (now - 3_599_000)) < 1_000);
});

test("commands are quoted for a shell", () => {
  assert.equal(command("group seek", ["orders", "billing"], ["--from", "offset:3"]), "eventhub group seek orders billing --from offset:3");
  assert.equal(command("pub", ["a", `it's $(rm -rf /) "x"`]), `eventhub pub a 'it'\\''s $(rm -rf /) "x"'`);
  assert.equal(command("pub", ["a", "-1"], ["--key", "-k"]), "eventhub pub --key -k -- a -1");
  assert.equal(command("dlq requeue", ["a", 7, "-"]), "eventhub dlq requeue a 7 -");
});

test("settings are the flags of the command that stores the same", () => {
  const words = (settings: object): string => (settingsCommand("orders", settings, 3) as string).replace("eventhub topic set orders ", "");
  assert.equal(words({}), "--keep-everything --if-version 3");
  assert.equal(words({ retention: { age: "3d", bytes: "1GiB", count: 5 }, key_required: true, state: "on", group_idle_expiry: "30d" }),
    "--retention-age 3d --retention-bytes 1GiB --retention-count 5 --key-required --state on --group-idle-expiry 30d --if-version 3");
  assert.equal(words({ compaction: { min_age: "1h", hold: "2d", grace: "1d" } }), "--compact --compact-min-age 1h --compact-hold 2d --compact-grace 1d --if-version 3");
  assert.equal(words({ compaction: {}, key_required: false, retention: {} }), "--compact --if-version 3");
  assert.equal(words({ snapshot: { every: "1m", changes: 9, batch_keys: ["a", "it's"], key_source: "event.payload.host" } }),
    "--snapshot --snapshot-every 1m --snapshot-changes 9 --snapshot-key a --snapshot-key 'it'\\''s' --snapshot-key-source event.payload.host --if-version 3");
  // Each setting that there is has a flag, and each flag a setting.
  const go = source("../../cmd/eventhub/topic_settings.go");
  const known = [...go.matchAll(/flags\.\w+Var\(&f\.\w+, "([\w-]+)"/g)].map((m) => m[1]).filter((f) => f !== "keep-everything").sort();
  const used = words({ retention: { age: "1", bytes: "1", count: 1 }, compaction: { min_age: "1", hold: "1", grace: "1" }, key_required: true, state: "on", group_idle_expiry: "1", snapshot: { every: "1", changes: 1, batch_keys: ["k"], key_source: "e" } });
  assert.deepEqual([...used.matchAll(/--([\w-]+)/g)].map((m) => m[1]).filter((f) => f !== "if-version").sort(), known);
});

import assert from "node:assert/strict";
import { after, before } from "node:test";
import type { AnyTopics, Hub } from "../src/index.ts";
import { Console, mint, secret } from "./console.ts";
import { test, TestHub } from "./harness.ts";

// Topics, events, state, dead letters, traces and connections in the console of the real binary, with events
// that carry markup and scripts wherever they can.

let hub: TestHub, ops: Hub<AnyTopics>, c: Console;
const all = mint(["*"]);
const evil = '<img src=x onerror="alert(1)"><script>window.seen.hacked=true;alert(2)</script>"\'&lt;';

async function api(method: string, path: string, body?: unknown): Promise<unknown> {
  const response = await fetch(`http://127.0.0.1:${hub.http}${path}`, { method, headers: { authorization: `Bearer ${all}` }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text === "" ? undefined : JSON.parse(text);
}

interface Pulled { deliveries: { ctx: { lease: string } }[] }

/** Gives so many events of a topic up, with a reason. */
async function giveUp(topic: string, n: number, reason: string): Promise<void> {
  const { deliveries } = await api("POST", `/v1/topics/${topic}/groups/shipping/pull?max=${n}&wait_ms=5000`, { from: "earliest" }) as Pulled;
  assert.equal(deliveries.length, n);
  await api("POST", `/v1/topics/${topic}/groups/shipping/nack`, { leases: deliveries.map((d) => d.ctx.lease), terminal: true, reason });
}

before(async () => {
  hub = await TestHub.apart("--jwt-secret", secret);
  ops = await hub.connect({ token: () => all });
  await ops.publishBatch(Array.from({ length: 400 }, (_, i) => ({ topic: `many.t${String(i).padStart(3, "0")}`, payload: i })));
  await ops.publishBatch(Array.from({ length: 120 }, (_, i) => ({ topic: "orders", id: `order-${i + 1}`, key: `customer-${i % 4}`, payload: { total: i, note: `number ${i}` } })));
  await ops.publish("evil", { text: evil, [evil]: [evil, { deep: evil }], big: 1 }, { id: "evil-1", key: evil, headers: { "x-evil": evil, "x-correlation-id": "cart-9" }, tags: [evil.slice(0, 100)], sid: evil.slice(0, 60), causedBy: ["order-7"] });
  await fetch(`http://127.0.0.1:${hub.http}/publish/evil?id=exact`, { method: "POST", headers: { authorization: `Bearer ${all}` }, body: '{"n":12345678901234567890.10}' });
  await ops.publish("chain.billed", { ok: true }, { id: "bill-1", causedBy: ["evil-1"], headers: { "x-correlation-id": "cart-9" } });
  await ops.publish("chain.sent", { ok: true }, { id: "mail-1", causedBy: ["bill-1", "gone-1"] });
  await giveUp("orders", 20, "no such street");
  await giveUp("orders", 3, `timeout ${evil}`);
  c = await Console.open();
  await c.signIn(hub, all, "#/topics");
});

after(async () => {
  await c?.close();
  await ops?.close();
  await hub?.end();
});

const rows = (id: string): Promise<string[]> => c.page.$$eval(`#${id} tbody tr`, (list) => list.map((r) => r.textContent ?? ""));
const count = (id: string, n: number): Promise<unknown> => c.page.waitForFunction(([at, want]) => document.querySelectorAll(`#${at} tbody tr`).length === want, [id, n] as const);
const dialog = (want: RegExp): Promise<string> => c.says("dialog.ask", want);
const press = (name: string): Promise<void> => c.page.click(`dialog.ask .buttons button:has-text("${name}")`);

/** No event has become an element, or a script that ran. */
async function harmless(): Promise<void> {
  assert.equal(await c.page.$$eval("main img, main script, dialog img", (list) => list.length), 0);
  await c.clean();
}

test("topics are searched among many, of which those in sight are in the page, with their rates", async () => {
  await c.says(".tools [role=status]", /^40[5-9] topics$/);
  assert.ok(await c.page.$$eval(".window tbody tr", (list) => list.length) < 70);
  await c.page.evaluate(() => { (document.querySelector(".window") as HTMLElement).scrollTop = 36 * 300; });
  await c.says(".window tbody th", /^many\.t29\d$/);
  await c.page.fill("#search", "T12 many");
  await c.says(".tools [role=status]", /^10 topics$/);
  const load = setInterval(() => { void ops.publish("many.t127", 1); }, 50);
  await c.page.waitForFunction(() => [...document.querySelectorAll(".window tbody tr")].some((r) => r.querySelector("th")?.textContent === "many.t127" && Number(r.querySelectorAll("td")[1]?.textContent) > 5));
  clearInterval(load);
  await c.says(".window tbody tr", /^many\.t127\d+[\d.]+[\d.]+ (B|KiB)[\d.]+ (B|KiB)0(just now|\d+ s ago)$/);
  await c.shot("topics", true);
  await c.accessible("topics");
  await c.page.fill("#search", "orders");
  await c.page.click('.window a:has-text("orders")');
  await c.says("h1", /^orders$/);
});

test("events are found by offset, time, key, id and filter; an error of a filter is said in place", async () => {
  await c.says(".tile", /Newest offset120/);
  await count("events", 50);
  assert.match((await rows("events"))[0] ?? "", /^120.*customer-3order-120\{"total":119/);
  await c.page.click('button:has-text("Earlier")');
  await c.says("#events tbody tr", /^21/);
  await c.page.click('button:has-text("Later")');
  await c.says("#events tbody tr", /^120/);
  await c.page.selectOption("#events-from", "offset");
  await c.page.fill("#events-value", "100");
  await count("events", 21);
  await c.page.selectOption("#events-from", "newest");
  await c.page.fill("#events-key", "customer-2");
  await count("events", 30);
  await c.page.fill("#events-filter", "event.payload.total > 100.0");
  await count("events", 5);
  await c.refusing(async () => {
    await c.page.fill("#events-filter", "event.payload.total >");
    await c.says(".note.bad", /bad_request.*(Syntax error|syntax)/);
  });
  await c.shot("filter");
  await c.page.fill("#events-filter", "");
  await c.page.fill("#events-key", "");
  await c.page.selectOption("#events-from", "from_ts");
  await c.page.fill("#events-value", "2020-01-01T00:00:00");
  await c.says("#events tbody tr", /^1\d/);
  await c.page.selectOption("#events-from", "after_id");
  await c.page.fill("#events-value", "order-115");
  await count("events", 5);
  await c.refusing(async () => {
    await c.page.fill("#events-value", "no-such");
    await c.says(".note.bad", /unknown_id/);
  });
  await c.page.selectOption("#events-from", "id");
  await c.page.fill("#events-value", "order-7");
  await count("events", 1);
  await c.page.selectOption("#events-from", "newest");
  await count("events", 50);
  await c.shot("topic", true);
  await c.accessible("a topic");
}, 90_000);

test("an event with markup and scripts is shown as text, with its numbers as they are written", async () => {
  await c.go("#/topics/evil");
  await c.says("#events tbody tr", /onerror="alert\(1\)"/);
  await harmless();
  await c.go("#/topics/evil/event/evil-1");
  await c.says("#fields tr", /^Header x-evil<img src=x onerror="alert\(1\)">/);
  assert.equal(await c.page.$eval('#fields tr:has(th:text-is("Key")) td', (e) => e.textContent), evil);
  await c.says("#tree", /text: "<img src=x/);
  for (const summary of await c.page.$$("#tree details:not([open]) summary")) await summary.click();
  await c.says("#tree", /deep|\{ 1 member \}/);
  await c.page.click('button:has-text("As stored")');
  await c.says("#raw", /"topic":"evil".*<script>window\.seen\.hacked=true/);
  await c.shot("event", true);
  await c.accessible("an event");
  await harmless();
  await c.go("#/topics/evil/event/exact");
  await c.says("#tree", /n: 12345678901234567890\.10/);
  await c.go("#/topics/orders/event/order-1");
  await c.says("#event-groups", /shipping.*is done/);
});

test("an event of one MiB is opened without the page standing still", async () => {
  const large = { list: Array.from({ length: 5_000 }, (_, i) => ({ i, text: "x".repeat(170) })) };
  await ops.publish("large", large, { id: "large-1" });
  await c.page.evaluate(() => { (window as unknown as { longest: number }).longest = 0; });
  await c.go("#/topics/large/event/large-1");
  await c.says("#tree", /list: \[ 5,000 elements \]/);
  await c.page.click('#tree summary:has-text("list")');
  await c.page.waitForSelector('#tree button:has-text("4,900 more")');
  await c.page.click('button:has-text("As stored")');
  await c.page.waitForSelector('button:has-text("characters")');
  console.log(`an event of one MiB: the longest task is ${await c.page.evaluate(() => (window as unknown as { longest: number }).longest)} ms (0: none above 50)`);
});

test("a live tail is paused, and goes on where it stopped", async () => {
  await c.go("#/topics/orders/live");
  await c.says("#tail-state", /Live/);
  await ops.publish("orders", { live: 1, text: evil }, { key: "customer-9" });
  await c.says("#tail tbody tr", /"live":1/);
  await c.page.click("#tail-pause");
  await c.says("#tail-state", /Paused/);
  for (const n of [2, 3, 4]) await ops.publish("orders", { live: n }, { key: n === 3 ? "customer-3" : "customer-9" });
  await c.page.click("#tail-pause");
  await count("tail", 4);
  assert.deepEqual((await rows("tail")).map((r) => /"live":(\d)/.exec(r)?.[1]), ["4", "3", "2", "1"]);
  await c.accessible("a tail");
  await c.refusing(async () => {
    await c.page.fill("#tail-filter", "event.payload.live ==");
    await c.says(".note.bad", /bad_request/);
  });
  await c.page.fill("#tail-filter", "event.payload.live == 6");
  await c.says("#tail-state", /Live/);
  await ops.publishBatch([5, 6, 7].map((live) => ({ topic: "orders", payload: { live } })));
  await count("tail", 1);
  await c.says("#tail", /"live":6/);
  // Faster than anybody reads: the page takes a part, and says so.
  await c.page.fill("#tail-filter", "");
  await count("tail", 0);
  await c.says("#tail-state", /Live/);
  await ops.publishBatch(Array.from({ length: 2_000 }, (_, n) => ({ topic: "orders", payload: { n } })));
  await c.says("#tail-state", /1,9\d\d events were left out/);
  assert.match((await rows("tail"))[0] ?? "", /"n":1999/);
  assert.ok((await rows("tail")).length <= 200);
  await harmless();
});

test("the state by key now, at an offset, and what has changed between two", async () => {
  await ops.publishBatch(["a", "b", "c"].map((key) => ({ topic: "stock", key, payload: { n: 1 } })));
  await ops.publishBatch([{ topic: "stock", key: "a", payload: { n: 2 } }, { topic: "stock", key: "b", payload: null }, { topic: "stock", key: evil, payload: evil }]);
  await c.go("#/topics/stock/state");
  await count("state", 3);
  assert.match((await rows("state")).join("\n"), /a4.*\{"n":2\}/);
  await c.page.fill("#state-at", "3");
  await c.says("main [role=status]", /The state at offset 3: 3 keys/);
  assert.match((await rows("state")).join("\n"), /b2.*\{"n":1\}/);
  await c.refusing(async () => {
    await c.page.fill("#state-at", "99");
    await c.says(".note.bad", /bad_request/);
  });
  await c.page.selectOption("#state-mode", "diff");
  await c.page.fill("#state-from", "3");
  await c.says("#diff tbody", /removed/); // the default range has three rows also, and none of them is removed
  await count("diff", 3);
  assert.match((await rows("diff")).join("\n"), /achanged\{"n":1\}\{"n":2\}[^]*bremoved\{"n":1\}/);
  await c.says(".command code", /eventhub state stock --from 3/);
  await c.shot("state", true);
  await c.accessible("a state");
  await harmless();
});

test("the history of a key has its changes, the newest first, with what caused them", async () => {
  await ops.publishBatch([{ topic: "stock", key: "a", payload: { n: 3 }, id: "stock-9", causedBy: ["order-7", "gone-2"] }, { topic: "stock", key: "a", payload: null }]);
  await c.go("#/topics/stock/events"); // what was asked for of the state is forgotten
  await c.page.waitForSelector("#events");
  await c.go("#/topics/stock/state");
  await c.page.click('#state a[href$="/key/b"], #state a[href$="/key/c"]');
  await c.says("h2", /^Key [bc]$/);
  await c.go("#/topics/stock/key/a");
  await count("history", 4);
  const list = await rows("history");
  assert.match(list[0] ?? "", /removednull\{"n":3\}$/);
  assert.match(list[1] ?? "", /changed\{"n":3\}\{"n":2\}order-7 ordersgone-2 \(gone\)$/);
  assert.match(list[3] ?? "", /^1.*added\{"n":1\}$/);
  await c.says(".command code", /^eventhub state stock a --history$/);
  await c.shot("key", true);
  await c.accessible("the history of a key");
  await c.go(`#/topics/stock/key/${encodeURIComponent(evil)}`);
  await count("history", 1);
  await c.says("h2", /^Key <img src=x onerror/);
  await harmless();
});

test("settings show what they would remove before they are stored; an event is published", async () => {
  await c.go("#/topics/many.t127/settings");
  await c.page.click('button:has-text("Change…")');
  await c.page.fill("#settings", '{"retention":{"count":');
  await dialog(/bad_json/);
  await c.page.fill("#settings", '{"retention":{"count":1}}');
  const head = (await api("GET", "/v1/topics/many.t127") as { head: number }).head;
  await c.says("#settings-plan", new RegExp(`^${head - 1} events of .* would be removed now`));
  assert.deepEqual((await api("GET", "/v1/topics/many.t127") as { settings?: unknown }).settings, {});
  await dialog(/eventhub topic set many\.t127 --retention-count 1 --if-version 0/);
  await c.shot("settings", true);
  // Somebody else is quicker: nothing is overwritten, and it is said where it happened.
  await api("PUT", "/v1/topics/many.t127", { key_required: true });
  await c.refusing(async () => {
    await press("Store");
    await dialog(/conflict/);
  });
  assert.deepEqual((await api("GET", "/v1/topics/many.t127") as { settings?: unknown }).settings, { key_required: true });
  await press("Cancel");
  await c.says("#settings-now", /"key_required": true/);
  await c.page.click('button:has-text("Change…")');
  await c.page.fill("#settings", '{"retention":{"count":1}}');
  await c.says("#settings-plan", /would be removed now/);
  await press("Store");
  await dialog(/stored as version \d/);
  await press("Close");
  await c.says("#settings-now", /"count": 1/);
  await c.page.click('button:has-text("Publish…")');
  await c.page.fill("#publish-key", "k");
  await c.page.fill("#publish-payload", "{");
  assert.ok(await c.page.isDisabled('dialog.ask button:has-text("Publish")'));
  await c.page.fill("#publish-payload", '{"test":true}');
  await dialog(/eventhub pub many\.t127 '\{"test":true\}' --key k/);
  await press("Publish");
  await dialog(new RegExp(`Published at offset ${head + 1}`));
  await press("Close");
});

test("dead letters are listed by reason, and redriven: chosen ones, and all of a list, after a dry run", async () => {
  await c.go("#/dlq");
  await c.says("#letter-groups tbody tr", /shippingorders23000/);
  await c.accessible("dead letters");
  await c.page.click("#letter-groups a");
  await count("letters", 23);
  await c.shot("dead-letters", true);
  await c.accessible("dead letters of a group");
  await c.page.check('input[aria-label="Choose dead letter 2"]');
  await c.page.check('input[aria-label="Choose dead letter 5"]');
  await c.page.click('button:has-text("Redrive those chosen…")');
  await c.says("#redrive-plan", /2 events of 2 dead letters would go back, 2 to shipping/);
  await dialog(/eventhub dlq redrive orders --group shipping --offset 2,5 --rate 1000 --apply/);
  assert.equal((await api("GET", "/v1/dlq") as { topics: { open: number }[] }).topics[0]?.open, 23);
  await c.accessible("a redrive");
  await press("Redrive");
  await dialog(/2 events went back/);
  await press("Close");
  await count("letters", 21);
  await c.page.fill("#letters-reason", "timeout");
  await count("letters", 3);
  await harmless();
  await c.page.click('button:has-text("Redrive all of this list…")');
  await c.says("#redrive-plan", /3 events of 3 dead letters would go back/);
  await press("Redrive");
  await dialog(/3 events went back/);
  await press("Close");
  await c.says("main [role=status]", /No dead letter is like that/);
  await c.page.check("#letters-all");
  await count("letters", 3);
  await c.page.uncheck("#letters-all");
  await c.page.fill("#letters-reason", "");
  await count("letters", 18);
});

test("of two operators who redrive the same dead letters the second gives none back again", async () => {
  await c.page.check('input[aria-label="Choose dead letter 3"]');
  await c.page.check('input[aria-label="Choose dead letter 4"]');
  await c.page.click('button:has-text("Redrive those chosen…")');
  await c.says("#redrive-plan", /2 events of 2 dead letters would go back/);
  await api("POST", "/v1/dlq/orders/redrive?group=shipping&offsets=3&apply=1");
  await press("Redrive");
  await dialog(/1 event went back/);
  await press("Close");
  await count("letters", 16);
});

test("of two operators who requeue the same dead letter the second is told, and publishes nothing", async () => {
  const head = async (): Promise<number> => (await api("GET", "/v1/topics/orders") as { head: number }).head;
  await c.page.click('#letters button:has-text("6") >> nth=0');
  await c.says("#letter", /Dead letter 6: event 6/);
  await c.page.click('button:has-text("Edit and requeue…")');
  await api("POST", "/v1/dlq/orders/6/requeue", { total: 77 });
  const before = await head();
  await c.refusing(async () => {
    await press("Requeue");
    await dialog(/conflict ops at .* has requeued the dead letter at offset 6 of topic "orders\.dlq" at .*; nothing was published/);
  });
  assert.equal(await head(), before);
  await press("Cancel");
  await count("letters", 15);
});

test("a dead letter is mended and requeued", async () => {
  await c.page.click('#letters button:has-text("1") >> nth=0');
  await c.says("#letter", /Dead letter 1: event 1 of orders.*no such street/);
  await c.page.click('button:has-text("Edit and requeue…")');
  await c.page.fill("#requeue-payload", '{"total":0,"street":"Main"}');
  await press("Requeue");
  const said = await dialog(/Published at offset \d+/);
  const offset = Number(/offset (\d+)/.exec(said)?.[1]);
  await press("Close");
  await count("letters", 14);
  const page = await api("GET", `/replay?topic=orders&from=offset&offset=${offset}&limit=1`) as { events: { payload: unknown; caused_by: string[] }[] };
  assert.deepEqual({ payload: page.events[0]?.payload, caused: page.events[0]?.caused_by }, { payload: { total: 0, street: "Main" }, caused: ["order-1"] });
  await harmless();
});

test("a trace is drawn over topics, with what is gone; from an id and by correlation id", async () => {
  await c.go("#/trace");
  await c.page.fill("#trace-id", "bill-1");
  await c.page.keyboard.press("Enter");
  await c.page.waitForSelector("#graph .node.here");
  const nodes = await c.page.$$eval("#graph .node", (list) => list.map((n) => n.querySelector(".topic")?.textContent));
  assert.deepEqual([...nodes].sort(), ["chain.billed", "chain.sent", "evil", "orders"]);
  await c.page.click('#graph a[href="#/topics/chain.sent/event/mail-1"]');
  await c.says("h1", /^mail-1$/);
  await c.page.click('a:has-text("What caused it")');
  await c.says("#trace tbody tr", /^-1gone, or never published here/);
  await c.page.waitForFunction(() => document.querySelectorAll("#graph .edge").length >= 3);
  await c.shot("trace", true);
  await c.accessible("a trace");
  await c.go("#/trace");
  await c.page.fill("#trace-correlation", "cart-9");
  await c.page.keyboard.press("Enter");
  await count("correlated", 2);
  await c.go("#/topics/chain.billed/event/bill-1");
  await c.page.click('#fields a:has-text("cart-9")');
  await count("correlated", 2);
  await c.refusing(async () => {
    await c.go("#/trace/no-such-event");
    await c.says(".note.bad", /unknown_id/);
  });
});

test("connections are seen, and one is closed, after which its client is there again", async () => {
  await c.go("#/connections");
  await count("connections", 1);
  const before = (await api("GET", "/v1/connections") as { connections: { id: string }[] }).connections[0]?.id;
  await c.page.click('#connections button:has-text("Close…")');
  await dialog(/0 events in flight.*eventhub connections close/);
  await press("Close it");
  await dialog(/The connection is closed/);
  await press("Close");
  await c.says("#ended tbody tr", /^1001going away.*1$/);
  await c.says("#ended-last tbody tr", /^ops.*127\.0\.0\.1:.*1001The connection was closed by an operator\.$/);
  await c.accessible("connections");
  await c.shot("connections");
  await ops.publish("many.t001", 1); // over another connection
  assert.notEqual((await api("GET", "/v1/connections") as { connections: { id: string }[] }).connections[0]?.id, before);
  await c.clean();
});

test("every page fits 360 px, and is usable in the dark", async () => {
  await c.page.emulateMedia({ colorScheme: "dark" });
  await c.page.setViewportSize({ width: 360, height: 740 });
  for (const [hash, there] of [["#/topics", ".window tbody tr"], ["#/topics/orders", "#events"], ["#/topics/evil/event/evil-1", "#fields"], ["#/topics/stock/state", "#state"], ["#/topics/orders/settings", "#settings-now"],
    ["#/dlq", "#letter-groups"], ["#/dlq/orders/shipping", "#letters"], ["#/trace/bill-1", "#graph"], ["#/connections", "#connections"]] as const) {
    await c.go(hash);
    await c.page.waitForSelector(there);
    await c.fits();
    await c.accessible(`${hash} at 360 px`);
  }
  await c.shot("narrow-connections");
  await c.page.setViewportSize({ width: 1240, height: 800 });
  await c.page.emulateMedia({ colorScheme: "light" });
  await c.clean();
});

test("who may only read has no button that changes anything", async () => {
  await c.signIn(hub, mint(["read:orders", "read:orders.dlq"], 3600, "reader"), "#/topics/orders/settings");
  await c.says("#settings-now", /\{/);
  await c.page.waitForFunction(() => [...document.querySelectorAll(".tabs a")].map((a) => a.textContent).join() === "Events,State by key,Settings");
  for (const hash of ["#/topics/orders/settings", "#/topics/orders", "#/dlq/orders/shipping"]) {
    await c.go(hash);
    await c.page.waitForSelector("#settings-now, #events tbody tr, #letters tbody tr");
    const buttons = await c.page.$$eval("main button", (list) => list.map((b) => b.textContent ?? ""));
    assert.deepEqual(buttons.filter((b) => b.endsWith("…")), [], hash);
  }
  await c.refusing(async () => {
    await c.go("#/connections");
    await c.says(".note.bad", /forbidden/);
  });
  assert.equal(await c.page.$("#connections, #ended-last"), null);
  await c.clean();
});

import assert from "node:assert/strict";
import { after, before } from "node:test";
import type { AnyTopics, Hub } from "../src/index.ts";
import { Console, mint, secret } from "./console.ts";
import { test, TestHub } from "./harness.ts";

// The console of the real binary in a real browser, with groups that stand still in each way that can be made
// in a moment, and one that works.

let hub: TestHub, ops: Hub<AnyTopics>, c: Console, load: NodeJS.Timeout;
const all = mint(["*"]);
const ever = new Promise<never>(() => undefined);

async function api(method: string, path: string, body?: unknown): Promise<unknown> {
  const response = await fetch(`http://127.0.0.1:${hub.http}${path}`, { method, headers: { authorization: `Bearer ${all}` }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text === "" ? undefined : JSON.parse(text);
}

interface Pulled { deliveries: { ctx: { lease: string } }[] }

/** Takes events of a group that is gone a moment later, and nacks so many of them. */
async function fail(topic: string, group: string, options: object, nack: object, times: number): Promise<void> {
  for (let i = 0; i < times; i++) {
    const { deliveries } = await api("POST", `/v1/topics/${topic}/groups/${group}/pull?max=1&wait_ms=5000`, { from: "earliest", ...options }) as Pulled;
    assert.equal(deliveries.length, 1, `${topic} gave ${deliveries.length} events`);
    await api("POST", `/v1/topics/${topic}/groups/${group}/nack`, { leases: deliveries.map((d) => d.ctx.lease), ...nack });
  }
}

/** Groups that stand still, each in its way. Members hold what they have for ever. */
async function standstill(): Promise<void> {
  const publish = (topic: string, n: number, key?: string): Promise<unknown> => ops.publishBatch(Array.from({ length: n }, (_, i) => ({ topic, payload: { n: i }, ...(key ? { key } : {}) })));
  const hold = (topic: string, options: object): Promise<unknown> => ops.subscribe(topic, { group: "worker", from: "earliest", ...options }, async () => { await ever; });
  await Promise.all([publish("stuck.paused", 4), publish("stuck.nobody", 7), publish("stuck.full", 9), publish("stuck.key", 3, "customer-7"), publish("stuck.poison", 1), publish("stuck.retry", 1)]);
  await ops.publish("stuck.letters", { total: 5 });
  await hold("stuck.full", { maxInFlight: 2, ackTimeoutMs: 600_000 });
  await hold("stuck.key", { ordering: "key", ackTimeoutMs: 600_000 });
  await api("POST", "/v1/topics/stuck.nobody/groups/worker/pull?max=1", { from: "earliest" });
  await api("POST", "/v1/topics/stuck.paused/groups/worker/pull?max=1", { from: "earliest" });
  await api("POST", "/v1/topics/stuck.paused/groups/worker/pause");
  await fail("stuck.poison", "worker", {}, { delay_ms: 1, reason: "no such customer" }, 2);
  await fail("stuck.poison", "worker", {}, { delay_ms: 600_000, reason: "still no such customer" }, 1);
  await fail("stuck.retry", "worker", {}, { delay_ms: 600_000, reason: "try later" }, 1);
  // Members that are there, so that it is not for want of them.
  await hold("stuck.poison", {});
  await hold("stuck.retry", {});
  await fail("stuck.letters", "worker", {}, { terminal: true, reason: "no such street" }, 1);
}

before(async () => {
  hub = await TestHub.apart("--jwt-secret", secret);
  ops = await hub.connect({ token: () => all });
  await standstill();
  await ops.subscribe("load.a", { group: "worker" }, () => undefined);
  load = setInterval(() => { void ops.publishBatch(Array.from({ length: 20 }, (_, n) => ({ topic: "load.a", payload: { n } }))).catch(() => undefined); }, 50);
  c = await Console.open();
});

after(async () => {
  clearInterval(load);
  await c?.close();
  await ops?.close();
  await hub?.end();
});

const item = (kind: string): string => `.wrong li[data-kind="${kind}"]`;

test("the console asks for a token, keeps it in memory alone, and says why one is refused", async () => {
  c.refusals = true;
  const answer = await c.page.goto(hub.console);
  assert.match(answer?.headers()["content-security-policy"] ?? "", /default-src 'none'.*require-trusted-types-for 'script'/);
  await c.says("#sign-in-why", /token/i);
  await c.accessible("signing in");
  await c.enter("no-such-token");
  await c.says("#sign-in-why", /not|malformed|invalid|valid/i);
  assert.equal(await c.page.inputValue("#token"), "");
  await c.enter(all);
  await c.page.waitForSelector('#link[data-state="open"]');
  c.refusals = false;
  const kept = await c.page.evaluate(async () => ({ local: localStorage.length, session: sessionStorage.length, cookie: document.cookie, databases: (await indexedDB.databases()).length, url: location.href }));
  assert.deepEqual({ ...kept, url: kept.url.includes(all) }, { local: 0, session: 0, cookie: "", databases: 0, url: false });
});

test("the overview has the rates of the hub under load, live", async () => {
  const value = (label: string): Promise<number> => c.page.$$eval(".tile", (tiles, of) => Number(tiles.find((t) => t.querySelector(".label")?.textContent === of)?.querySelector(".value")?.textContent?.replace(/[^\d.]/g, "")), label);
  for (const label of ["Published", "Delivered", "Acked"]) {
    await c.page.waitForFunction((of) => [...document.querySelectorAll(".tile")].some((t) => t.querySelector(".label")?.textContent === of && Number(t.querySelector(".value")?.textContent?.replace(/[^\d.]/g, "")) >= 20), label);
  }
  assert.equal(await value("Connections"), 1);
  assert.equal(await value("Dead letters"), 1);
  await c.says(".tile", /p99 ≤ [\d,]+ ms/);
  await c.page.waitForFunction(() => document.querySelectorAll(".plot canvas").length === 2);
});

test("the overview names what holds each stuck group up, the worst first", async () => {
  for (const [kind, want] of [
    ["no_members", /worker in stuck\.nobody has no members.*Nobody is subscribed to the group\. 7 events are not done, the oldest for /],
    ["paused", /worker in stuck\.paused is paused.*until somebody resumes it\. 4 events are not done/],
    ["poison", /worker in stuck\.poison has an event that keeps failing.*Event 1 fails again and again: 3 attempts of 5\. Attempt 3 was nacked: “still no such customer”\. It waits for its next attempt, in \d+ min/],
    ["retry", /worker in stuck\.retry waits for a retry.*Event 1 waits for its next attempt, in \d+ min.*Attempt 1 was nacked: “try later”/],
    ["dead_letters", /worker in stuck\.letters has dead letters.*1 dead letter waits for somebody/],
  ] as const) await c.says(item(kind), want);
  await c.page.click(`${item("poison")} h3 a`);
  await c.says("#standing", /Event 1 fails again and again/);
  assert.match(await c.page.title(), /worker · stuck\.poison · Groups/);
});

test("one group shows what holds it, its events in flight and its members", async () => {
  await c.says("#flying", /1.*3.*waits for its next attempt.*nacked: still no such customer/);
  await c.says("#members", /ws/);
  await c.go("#/groups/stuck.full/worker");
  await c.says("#standing", /No member takes more/);
  await c.says("#members tbody", /2.*2/);
  await c.accessible("group");
  await c.go("#/groups/stuck.key/worker");
  await c.says("#standing", /“customer-7”/);
  await c.go("#/groups/load.a/worker");
  await c.says("#standing", /done everything|at work/);
  await c.go("#/groups/no.such/group");
  await c.says(".note.bad", /not_subscribed/);
});

test("groups are a window that is searched and sorted by the hub", async () => {
  await c.go("#/groups");
  await c.says(".tools [role=status]", /^8 groups$/);
  const names = (): Promise<string[]> => c.page.$$eval(".window tbody tr:not(.space) .dim", (list) => list.map((e) => e.textContent ?? ""));
  assert.equal((await names()).filter((n) => n !== "load.a")[0], "stuck.full"); // the lag of the busy one comes and goes
  await c.page.click("button.sort >> text=Group");
  await c.page.waitForFunction(() => [...document.querySelectorAll(".window tbody tr:not(.space) .dim")].map((e) => e.textContent).join(" ").startsWith("load.a stuck.full stuck.key"));
  await c.page.fill("#search", "POI work");
  await c.says(".tools [role=status]", /^1 group$/);
  assert.deepEqual(await names(), ["stuck.poison"]);
  await c.page.fill("#search", "");
  await c.says(".tools [role=status]", /^8 groups$/);
  await c.shot("groups", true);
  await c.accessible("groups");
});

const dialog = (want: RegExp): Promise<string> => c.says("dialog.ask", want);
const press = (name: string): Promise<void> => c.page.click(`dialog.ask .buttons button:has-text("${name}")`);

test("a group is resumed and paused: asked once, in numbers, with the command", async () => {
  await c.go("#/groups/stuck.paused/worker");
  await c.page.click('button:has-text("Resume…")');
  await dialog(/Resume worker in stuck\.paused\?.*4 events.*eventhub group resume stuck\.paused worker/);
  await press("Resume");
  await dialog(/gets its 4 events again/);
  await press("Close");
  await c.says("#standing", /Nobody is subscribed/);
  await c.page.click('button:has-text("Pause…")');
  await dialog(/Pause worker in stuck\.paused\?.*4 events.*eventhub group pause stuck\.paused worker/);
  await c.accessible("a question");
  await press("Cancel");
  assert.equal((await api("GET", "/v1/topics/stuck.paused/groups/worker") as { paused?: boolean }).paused, undefined);
  await c.page.click('button:has-text("Pause…")');
  await press("Pause");
  await dialog(/is paused, with 4 events not done/);
  await c.page.keyboard.press("Escape");
  assert.equal((await api("GET", "/v1/topics/stuck.paused/groups/worker") as { paused?: boolean }).paused, true);
  await c.says("#standing", /until somebody resumes it/);
});

test("a seek shows what it would do before it can be applied, and does that", async () => {
  await c.page.click('button:has-text("Seek…")');
  await c.page.selectOption("#seek-from", "latest");
  await c.says("#seek-plan", /from 0 to 4\..*0 events that are done come again.*4 that are not done will not be delivered/);
  await c.page.selectOption("#seek-from", "offset");
  assert.ok(await c.page.isDisabled('dialog.ask button:has-text("Seek")'));
  await c.page.fill("#seek-value", "99");
  await c.says("dialog.ask", /bad_request|offset/);
  await c.page.fill("#seek-value", "3");
  await c.says("#seek-plan", /from 0 to 2\./);
  await dialog(/eventhub group seek stuck\.paused worker --from offset:3 --apply/);
  assert.equal((await api("GET", "/v1/topics/stuck.paused/groups/worker") as { cursor: number }).cursor, 0);
  await c.shot("seek", true);
  await c.accessible("seek");
  await press("Seek");
  await dialog(/moved from 0 to 2: 0 events again, 2 skipped/);
  assert.equal((await api("GET", "/v1/topics/stuck.paused/groups/worker") as { cursor: number }).cursor, 2);
  await press("Close");
});

test("of two operators who seek by the same plan the second is told, sees the new plan, and has moved nothing", async () => {
  const cursor = async (): Promise<number> => (await api("GET", "/v1/topics/stuck.paused/groups/worker") as { cursor: number }).cursor;
  await c.page.click('button:has-text("Seek…")');
  await c.says("#seek-plan", /from 2 to 0\./);
  await api("POST", "/v1/topics/stuck.paused/groups/worker/seek?apply=1", { from: "offset", offset: 4 });
  await c.refusing(async () => {
    await press("Seek");
    await dialog(/conflict.*was moved since/);
  });
  assert.equal(await cursor(), 3);
  await c.says("#seek-plan", /from 3 to 0\./);
  await press("Seek");
  await dialog(/moved from 3 to 0/);
  await press("Close");
  await api("POST", "/v1/topics/stuck.paused/groups/worker/seek?apply=1", { from: "offset", offset: 3 });
  await c.clean();
});

test("two operators who act on one group do nothing twice, and each is told", async () => {
  const other = await c.tab();
  await c.signIn(hub, all, "#/groups/stuck.nobody/worker", other);
  await other.click('button:has-text("Delete…")');
  await c.page.bringToFront();
  await c.go("#/groups/stuck.nobody/worker");
  await c.page.click('button:has-text("Delete…")');
  await dialog(/for good: its cursor at 0.*7 events.*eventhub group rm stuck\.nobody worker/);
  await press("Delete");
  await dialog(/The group is deleted/);
  await press("Close");
  await c.says(".note.bad", /not_subscribed/);
  c.refusals = true;
  await other.bringToFront();
  await other.click('dialog.ask .buttons button:has-text("Delete")');
  await c.says("dialog.ask", /not_subscribed.*there is no group/, other);
  c.refusals = false;
  await other.close();
  await c.clean();
});

test("without rights a button is not there, and topics of others are not seen", async () => {
  await c.signIn(hub, mint(["read:stuck.full"], 3600, "reader"), "#/groups");
  await c.says(".tools [role=status]", /^1 group$/);
  await c.says(".who", /reader/);
  await c.page.click(".window a");
  await c.says("#standing", /No member takes more/);
  await c.says("#members", /ws/);
  assert.deepEqual(await c.page.$$eval("main button", (list) => list.map((b) => b.textContent)), []);
  c.refusals = true;
  await c.page.goto("about:blank");
  await c.page.goto(hub.console);
  await c.enter(mint(["publish:orders"]));
  await c.says(".banner", /does not allow read or admin on any topic/);
  c.refusals = false;
  await c.clean();
});

test("what has stood still for ten seconds is named as well, before what is a smaller matter", async () => {
  await c.signIn(hub, all);
  for (const [kind, want] of [
    ["members_full", /worker in stuck\.full has full members.*No member takes more.*Event 1 has been with .* for \d+ (s|min)[^.]*\. 9 events are not done/],
    ["key", /worker in stuck\.key is blocked on a key.*Events of the key “customer-7” are held until event 1 of that key is done\. It has been with .* for \d+ (s|min)[^.]*\. 3 events/],
  ] as const) await c.says(item(kind), want);
  const order = await c.page.$$eval(".wrong li", (list) => list.map((li) => li.className));
  assert.deepEqual(order, [...order].sort());
  assert.equal(await c.page.$$eval(".wrong li", (list) => list.some((li) => /load\.a/.test(li.textContent ?? ""))), false);
  await c.shot("overview", true);
  await c.accessible("overview");
  await c.page.click(`${item("members_full")} h3 a`);
  await c.says("#standing", /No member takes more.*Event 1 has been with/);
  await c.page.waitForSelector(".plot canvas");
  await c.shot("group", true);
  await c.clean();
});

test("a token that ends under an open page is said, and another one goes on at the same place", async () => {
  c.refusals = true;
  await c.page.goto("about:blank");
  await c.page.goto(`${hub.console}#/groups/stuck.full/worker`);
  await c.page.waitForSelector("#sign-in");
  await c.enter(mint(["*"], 0)); // tokens have a leeway of five seconds
  await c.says("#standing", /No member takes more/);
  await c.says("#sign-in-why", /expired/);
  await c.says("#standing", /No member takes more/); // what was seen stays
  await c.shot("expired");
  await c.enter(all);
  await c.page.waitForSelector('#link[data-state="open"]');
  await c.page.waitForSelector("#sign-in", { state: "detached" });
  await c.page.waitForSelector('button:has-text("Pause…")');
  c.refusals = false;
});

test("the page says that the hub is away, and goes on by itself when it is back", async () => {
  await c.go("#/");
  await c.says(item("members_full"), /stuck\.full/);
  c.refusals = true;
  await ops.close();
  await hub.stop("SIGKILL");
  await c.says("#away", /does not answer\. What you see is what it said last.*goes on by itself/);
  await c.page.waitForSelector('#link[data-state="away"]');
  await c.says(item("members_full"), /stuck\.full/);
  await c.shot("away", true);
  await c.go("#/topics");
  await c.says(".note.bad", /unreachable/);
  await hub.run();
  await c.page.waitForSelector('#link[data-state="open"]');
  await c.page.waitForSelector("#away", { state: "detached" });
  await c.says(".window tbody th", /stuck\.full/); // what could not be asked for is asked for again
  await c.go("#/");
  await c.says(item("no_members"), /stuck\.full/); // its member is gone
  c.refusals = false;
  ops = await hub.connect({ token: () => all });
});

test("dark, at 360 px and by keyboard alone", async () => {
  await c.page.emulateMedia({ colorScheme: "dark" });
  await c.says(".tile", /Published/);
  await c.accessible("overview, dark");
  await c.shot("dark", true);
  await c.page.setViewportSize({ width: 360, height: 740 });
  for (const hash of ["#/", "#/groups", "#/groups/stuck.full/worker"]) {
    await c.go(hash);
    await c.says("h1", /./);
    await c.page.waitForSelector(".tile, .window tbody tr");
    await c.fits();
    await c.accessible(`${hash} at 360 px`);
    await c.shot(hash === "#/" ? "narrow" : `narrow-${hash.split("/")[1]}-${hash.split("/").length}`, hash === "#/");
  }
  await c.page.setViewportSize({ width: 1240, height: 800 });
  await c.page.emulateMedia({ colorScheme: "light" });
  await c.go("#/groups");
  await c.says(".tools [role=status]", /^\d groups$/);
  await c.page.focus(".brand");
  for (let i = 0; i < 40 && await c.page.evaluate(() => document.activeElement?.closest(".window tbody")) === null; i++) await c.page.keyboard.press("Tab");
  await c.page.keyboard.press("Enter");
  await c.page.waitForFunction(() => /^#\/groups\/[^/]+\/worker$/.test(location.hash));
  await c.page.waitForSelector('button:has-text("Seek…")');
  for (let i = 0; i < 40 && await c.page.evaluate(() => document.activeElement?.textContent) !== "Seek…"; i++) await c.page.keyboard.press("Tab");
  await c.page.keyboard.press("Enter");
  await c.says("#seek-plan", /The cursor goes/);
  await c.page.keyboard.press("Escape");
  await c.page.waitForSelector("dialog.ask", { state: "detached" });
  await c.clean();
});

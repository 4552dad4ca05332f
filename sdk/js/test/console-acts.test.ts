import assert from "node:assert/strict";
import { createServer, connect as dial, type AddressInfo, type Server, type Socket } from "node:net";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { after, before } from "node:test";
import { Console, mint, secret } from "./console.ts";
import { test, TestHub } from "./harness.ts";

// What a page says and does is so, and is done once: numbers as they are stored, pages over gaps, one publish where the
// connection breaks, a redrive that is stopped, who is signed in, addresses that name nothing.

let hub: TestHub, c: Console;
const all = mint(["*"]);
const exact = '{"id":9007199254740993,"f":1.10,"big":123456789012345678901234567890}';

async function call(method: string, path: string, body?: string, headers: Record<string, string> = {}): Promise<string> {
  const response = await fetch(`http://127.0.0.1:${hub.http}${path}`, { method, headers: { authorization: `Bearer ${all}`, ...headers }, ...(body === undefined ? {} : { body }) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text;
}

interface Pulled { deliveries: { ctx: { lease: string } }[] }

/** Gives so many events of a topic up. */
async function giveUp(topic: string, n: number): Promise<void> {
  const { deliveries } = JSON.parse(await call("POST", `/v1/topics/${topic}/groups/g/pull?max=${n}&wait_ms=5000`, '{"from":"earliest"}')) as Pulled;
  assert.equal(deliveries.length, n);
  await call("POST", `/v1/topics/${topic}/groups/g/nack`, JSON.stringify({ leases: deliveries.map((d) => d.ctx.lease), terminal: true, reason: "no" }));
  while (await open(topic) < n); // they are written after the answer
}

const open = async (topic: string): Promise<number> => (JSON.parse(await call("GET", "/v1/dlq")) as { topics: { topic: string; open: number }[] }).topics.find((t) => t.topic === topic)?.open ?? 0;

const publish = (topic: string, payloads: unknown[], key?: (i: number) => string): Promise<string> =>
  call("POST", "/v1/publish", JSON.stringify({ events: payloads.map((payload, i) => ({ topic, payload, ...(key ? { key: key(i) } : {}) })) }));
const stored = async (topic: string): Promise<string[]> => (await call("GET", `/export?topic=${topic}&ndjson=1`)).trim().split("\n");
const offsets = (): Promise<string[]> => c.page.$$eval("#events tbody td:first-child", (list) => list.map((e) => e.textContent ?? ""));
const press = (name: string): Promise<void> => c.page.click(`dialog.ask .buttons button:has-text("${name}")`);
const says = (want: RegExp): Promise<string> => c.says("dialog.ask", want);

before(async () => {
  hub = await TestHub.apart("--jwt-secret", secret);
  c = await Console.open();
  await call("POST", "/publish/numbers?id=exact&key=k", exact);
  await c.signIn(hub, all, "#/topics/numbers");
});

after(async () => {
  await c?.close();
  await hub?.end();
});

test("numbers are shown as they are written in every list, and requeued as they are", async () => {
  await c.says("#events", /9007199254740993,"f":1\.10,"big":123456789012345678901234567890/);
  await c.go("#/topics/numbers/state");
  await c.says("#state", /9007199254740993,"f":1\.10/);
  await c.go("#/topics/numbers/key/k");
  await c.says("#history", /9007199254740993,"f":1\.10/);
  await giveUp("numbers", 1);
  await c.go("#/dlq/numbers/g");
  await c.page.click("#letters button");
  await c.says("#letter", /id: 9007199254740993/);
  await c.page.click('button:has-text("Edit and requeue…")');
  assert.equal((await c.page.inputValue("#requeue-payload")).replaceAll(/\s/g, ""), exact);
  await press("Requeue");
  await says(/Published at offset 2/);
  await press("Close");
  assert.ok((await stored("numbers"))[1]?.endsWith(`"payload":${exact}}`), (await stored("numbers"))[1]);
  const large = `[${Array.from({ length: 150_000 }, (_, i) => i).join(",")}]`;
  await call("POST", "/publish/large", large);
  await giveUp("large", 1);
  await c.go("#/dlq/large/g");
  await c.page.click("#letters button");
  await c.page.click('button:has-text("Edit and requeue…")');
  await press("Requeue");
  await says(/Published at offset 2/);
  await press("Close");
});

test("a topic is read backwards over offsets that are gone, and past events that a filter leaves out", async () => {
  await publish("gaps", Array.from({ length: 120 }, (_, i) => i), (i) => `first-${i}`);
  for (let n = 0; n < 3; n++) await publish("gaps", Array.from({ length: 5_000 }, (_, i) => ({ hit: n === 0 && i === 7 })), () => "hot");
  await publish("gaps", [1, 2, 3], (i) => `last-${i}`);
  await c.go("#/topics/gaps");
  await c.says("#events tbody tr", /^15123/);
  await c.page.fill("#events-filter", "event.payload.hit == true");
  await c.says("main [role=status]", /^0 events, of 1\d,\d{3} that were looked at; there are more to look at$/);
  await c.page.click('button:has-text("Earlier")');
  await c.says("#events tbody tr", /^128/);
  await c.page.fill("#events-filter", "");
  await c.says("#events tbody tr", /^15123/);
  await call("PUT", "/v1/topics/gaps", '{"compaction":{"min_age":"1s","hold":"1s","grace":"1s"}}');
  const deadline = Date.now() + 60_000;
  while ((await stored("gaps")).length > 124) if (Date.now() > deadline) throw new Error("the topic was not compacted");
  await c.go("#/topics/numbers");
  await c.go("#/topics/gaps");
  await c.says("#events tbody tr", /^15123/);
  const seen = await offsets();
  assert.equal(seen.length, 50);
  for (let n = 0; n < 2; n++) {
    const last = seen.at(-1);
    await c.page.click('button:has-text("Earlier")');
    await c.page.waitForFunction((was) => document.querySelector("#events tbody td")?.textContent !== was && Number(document.querySelector("#events tbody td")?.textContent) < Number(was), last ?? "");
    seen.push(...await offsets());
  }
  assert.deepEqual(seen, (await stored("gaps")).map((line) => String((JSON.parse(line) as { offset: number }).offset)).reverse());
  assert.ok(await c.page.isDisabled('button:has-text("Earlier")'));
  await c.page.click('button:has-text("Later")');
  await c.says("#events tbody tr", /^742/);
}, 120_000);

test("a publish whose answer is lost is published once", async () => {
  await call("POST", "/publish/shop", "1");
  let cut = 0;
  const clients = new Set<Socket>();
  const proxy: Server = createServer((client) => {
    const to = dial(hub.ops, "127.0.0.2");
    let dropped = false;
    clients.add(client);
    client.on("data", (data) => {
      dropped ||= data.toString("latin1").startsWith("POST /console/api/publish") && cut++ === 0;
      to.write(data);
    });
    to.on("data", (data) => { if (dropped) { client.destroy(); to.destroy(); } else client.write(data); });
    for (const [one, other] of [[client, to], [to, client]] as const) one.on("error", () => undefined).on("close", () => { other.destroy(); });
  });
  await new Promise<void>((resolve) => { proxy.listen(0, "127.0.0.1", resolve); });
  const page = await c.tab();
  c.refusals = true;
  await page.goto(`http://127.0.0.1:${(proxy.address() as AddressInfo).port}/#/topics/shop`);
  await c.enter(all, page);
  await page.click('button:has-text("Publish…")');
  await page.fill("#publish-payload", '{"pay":100}');
  await page.click('dialog .buttons button:has-text("Publish")');
  await page.waitForSelector("dialog .note"); // the browser may have sent it again by itself
  if (await page.$("dialog .note.bad")) await page.click('dialog .buttons button:has-text("Publish")');
  await c.says("dialog .note.good", /Published at offset 2/, page);
  await page.close();
  proxy.close();
  for (const client of clients) client.destroy();
  c.refusals = false;
  assert.equal(cut > 0, true);
  assert.deepEqual((await stored("shop")).map((line) => (JSON.parse(line) as { payload: unknown }).payload), [1, { pay: 100 }]);
});

test("a redrive that is stopped gives nothing back any more", async () => {
  await publish("slow", Array.from({ length: 200 }, (_, i) => i));
  await giveUp("slow", 200);
  await c.go("#/dlq/slow/g");
  await c.page.click('button:has-text("Redrive all of this list…")');
  await c.says("#redrive-plan", /200 events of 200 dead letters would go back/);
  await c.page.fill("#redrive-rate", "");
  assert.ok(await c.page.isDisabled('dialog .buttons button:has-text("Redrive")'));
  await c.page.fill("#redrive-rate", "10");
  await press("Redrive");
  await c.says("#redrive-plan", /dead letters went back/);
  await press("Stop");
  await says(/Stopped, after \d+ events? or some more went back\. The others stay/);
  await press("Close");
  // The same again comes to its end only where nobody else gives them back: then it has all that are open.
  const left = await open("slow");
  assert.ok(left > 100, `${left} are open`);
  assert.equal((JSON.parse(await call("POST", "/v1/dlq/slow/redrive?apply=1&rate=100000")) as { redriven: number }).redriven, left);
});

test("a group that somebody has made again since is not deleted in the place of the other", async () => {
  const pull = (): Promise<string> => call("POST", "/v1/topics/shop/groups/again/pull?max=1&wait_ms=1", '{"from":"earliest"}');
  await pull();
  await c.go("#/groups/shop/again");
  await c.page.click('button:has-text("Delete…")');
  await call("DELETE", "/v1/topics/shop/groups/again");
  await c.says("main .note.bad", /not_subscribed/);
  await pull();
  await c.says("#standing", /./);
  await press("Delete");
  await says(/conflict Somebody has moved this group, or made it again.*Nothing was deleted/);
  await press("Cancel");
  await call("GET", "/v1/topics/shop/groups/again");
});

test("an address that names nothing is said to be wrong, and the hub to be there", async () => {
  // Each note names its own address, for the note of the one before stays until the next is there.
  for (const [hash, want] of [["#/topics/a%20b", /bad_topic topic "a b"/], ["#/groups/c%20d/g", /bad_topic topic "c d"/],
    [`#/groups/t/${"x".repeat(300)}`, /bad_request group "xxx/], ["#/groups/%3Cscript%3E/g", /bad_topic topic "<script>"/]] as const) {
    await c.refusing(async () => {
      await c.go(hash);
      await c.says(".note.bad", want);
    });
    await c.says("#link", /^Live$/);
    assert.equal(await c.page.$("#away"), null);
  }
  await c.go("#/topics/numbers");
  await c.says(".tile", /Newest offset2/);
  assert.equal(await c.page.$(".note.bad"), null);
});

test("what is wrong is said of what was asked, also while the hub is away", async () => {
  await c.refusing(async () => {
    await c.go("#/groups/nobody/nobody");
    await c.says(".note.bad", /there is no group/);
    await hub.stop("SIGKILL");
    await c.page.waitForSelector("#away");
    await c.go("#/");
    await c.says("h1", /Overview/);
    assert.equal(await c.page.$("#all-well"), null);
    await c.go("#/groups/numbers/g");
    await c.says("h1", /^g/);
    await hub.run();
    await c.page.waitForSelector('button:has-text("Seek…")'); // what is allowed could not be asked
  });
});

test("another token shows what it may see, and nothing of what the one before could", async () => {
  await c.signInBriefly(hub, ["read:numbers"], "reader", "#/topics/numbers");
  await c.enter(mint(["publish:zzz"], 3600, "nobody"));
  await c.says(".banner", /does not allow read or admin on any topic/);
  assert.doesNotMatch(await c.page.innerText("main"), /9007199254740993|Publish…/);
  assert.doesNotMatch(await c.page.innerText(".bar"), /reader/);
  await c.enter(all);
  await c.page.waitForSelector('button:has-text("Publish…")');
  await c.says("#events", /9007199254740993/);
  await c.page.waitForSelector("#sign-in", { state: "detached" });
  c.refusals = false;
  await c.signInBriefly(hub, ["read:numbers"], "reader", "#/topics/numbers/settings");
  await c.enter(all);
  await c.page.waitForSelector('button:has-text("Change…")');
  c.refusals = false;
});

test("a time is typed with a space, and what is none is said to be none", async () => {
  await c.go("#/topics/numbers/state");
  await c.page.click("#state-at");
  await c.page.keyboard.type("2030-01-31 15:04");
  assert.equal(await c.page.inputValue("#state-at"), "2030-01-31 15:04");
  await c.says("#state", /9007199254740993/);
  for (const none of ["yesterday", "-5", "2026-31-01"]) {
    await c.page.fill("#state-at", none);
    await c.says(".note.bad", new RegExp(`bad_request “${none}” is no offset`));
    assert.equal(await c.page.$(".command"), null);
  }
  await c.clean();
});

test("a time is of the browser's zone, also in the command that does the same", async () => {
  const to = await c.context.newCDPSession(c.page);
  await to.send("Emulation.setTimezoneOverride", { timezoneId: "America/New_York" });
  await c.go("#/topics/numbers/state");
  const command = (want: RegExp): Promise<string> => c.says(".command code", want);
  for (const [given, want] of [["2026-01-31 15:04", "2026-01-31T20:04:00.000Z"], ["2026-01-31", "2026-01-31T05:00:00.000Z"], ["2026-01-31T15:04:05Z", "2026-01-31T15:04:05.000Z"], ["2h", "2h"], ["1", "1"]] as const) {
    const asked = c.page.waitForRequest((r) => new URL(r.url()).searchParams.get("at") === want);
    await c.page.fill("#state-at", given);
    await asked;
    hub.cli(...(await command(new RegExp(`--at ${want}$`))).split(" ").slice(1), "--url", hub.url, "--token", all);
  }
  await c.page.fill("#state-prefix", "k");
  await command(/--prefix k --at 1$/);
  // Without a moment to begin at, all that there is was added since.
  await c.page.selectOption("#state-mode", "diff");
  await c.says("#diff", /kadded/);
  assert.match(hub.cli(...(await command(/--from 1970/)).split(" ").slice(1), "--url", hub.url, "--token", all), /^added .*\bk\b/m);
  await to.send("Emulation.setTimezoneOverride", { timezoneId: "" });
  await to.detach();
});

test("times are told by the hub's clock, whatever the browser's says", async () => {
  await publish("clock", [1], () => "k");
  await giveUp("clock", 1);
  await call("POST", "/v1/topics/clock/groups/holds/pull?max=1&wait_ms=5000", '{"from":"earliest","ack_timeout_ms":600000}');
  const { id } = JSON.parse((await stored("clock"))[0] ?? "") as { id: string };
  for (const ahead of [-3_600_000, 3_600_000]) {
    const page = await c.tab();
    await page.addInitScript((by) => {
      const { now } = Date;
      Date.now = () => now() + by;
    }, ahead);
    await c.signIn(hub, all, "#/dlq/clock/g", page);
    const few = /(just now|^(\d+ min )?\d+ s ago)$/;
    await c.says("#letters td.time", few, page);
    const go = (hash: string): Promise<unknown> => page.evaluate((h) => { location.hash = h; }, hash);
    await go(`#/topics/clock/event/${id}`);
    const held = ahead > 0 ? /has been with .* for (less than 1 s|(\d+ min )?\d+ s)$/ : /has been with .* for (\d+ min )?\d+ s$/;
    await c.says("#event-groups td", held, page);
    await go(`#/trace/${id}`);
    await c.says("#trace td", /holds has been with .* for ([^h]|h[^ ])*(;|$)/, page);
    if (ahead > 0) {
      await c.refusing(async () => {
        await hub.stop("SIGKILL");
        await c.says("#away", /said last, (less than 1 s|(\d+ min )?\d+ s) ago/, page);
        await hub.run();
        await page.waitForSelector('#link[data-state="open"]');
        await c.page.waitForSelector('#link[data-state="open"]');
      });
    }
    await page.close();
  }
});

test("a tab that is opened behind others asks for nothing until somebody looks at it", async () => {
  const page = await c.tab();
  let asked = 0;
  page.on("request", (r) => { if (r.url().includes("/console/live")) asked++; });
  await page.addInitScript("Object.defineProperty(document, 'hidden', { get: () => !globalThis.looked })");
  c.refusals = true;
  await page.goto(`${hub.console}#/topics/numbers`);
  await page.waitForSelector("#sign-in");
  // Who is signed out stays so, whatever tab they look at.
  await page.evaluate(() => { document.dispatchEvent(new Event("visibilitychange")); });
  await page.waitForSelector('#link[data-state="denied"]');
  await c.enter(all, page);
  await page.waitForSelector('#link[data-state="resting"]');
  await c.says("#events", /9007199254740993/, page);
  c.refusals = false;
  asked = 0;
  await page.evaluate(() => {
    (globalThis as { looked?: boolean }).looked = true;
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await page.waitForSelector('#link[data-state="open"]');
  assert.equal(asked, 1);
  await page.close();
});

test("what somebody writes stays while they sign in again", async () => {
  const page = await c.tab();
  await c.signIn(hub, () => mint(["*"], 4), "#/topics/numbers/live", page); // tokens have a leeway of five seconds
  c.refusals = true;
  await page.click('button:has-text("Publish…")');
  await page.fill("#publish-payload", '{"written":1}');
  await page.waitForSelector("#sign-in");
  await page.screenshot({ path: `${process.env.SDK_ROOT ?? ""}../../bin/console/sign-in-again.png` });
  await page.keyboard.press("Escape"); // not a way past it
  await page.click("#token");
  await c.enter(all, page);
  await page.waitForSelector("#sign-in", { state: "detached" });
  assert.equal(await page.inputValue("#publish-payload"), '{"written":1}');
  await page.click('dialog.ask .buttons button:has-text("Publish")');
  await c.says("dialog.ask .note", /Published at offset/, page);
  await page.keyboard.press("Escape");
  await c.says("#tail", /written/, page);
  c.refusals = false;
  await page.close();
});

test("a tail shows nothing more of what another token could see", async () => {
  const page = await c.tab();
  await c.signIn(hub, () => mint(["*"], 4), "#/topics/numbers/live", page);
  c.refusals = true;
  await c.says("#tail-state", /Live/, page);
  await call("POST", "/publish/numbers", '{"seen":1}');
  await c.says("#tail", /seen/, page);
  await page.waitForSelector("#sign-in");
  await c.enter(mint(["admin:numbers"], 3600, "operator"), page);
  await c.says(".note.bad", /forbidden/, page);
  await page.waitForFunction(() => document.querySelectorAll("#tail tbody tr").length === 0);
  c.refusals = false;
  await page.close();
});

test("who comes back to a list finds it as it was, and nobody to a question", async () => {
  await publish("back", Array.from({ length: 200 }, (_, i) => i), (i) => `k${i % 2}`);
  await c.go("#/topics/back");
  await c.page.fill("#events-key", "k1");
  await c.says("main [role=status]", /of [\d,]+ that were looked at/);
  await c.page.click('button:has-text("Earlier")');
  await c.says("#events tr:first-child td", /^100$/);
  await c.page.click("#events tbody tr:first-child a");
  await c.says("#fields", /Offset100/);
  await c.page.goBack();
  await c.says("#events tr:first-child td", /^100$/);
  assert.equal(await c.page.inputValue("#events-key"), "k1");
  await c.refusing(async () => {
    await c.page.reload();
    await c.enter(all);
    await c.says("#events tr:first-child td", /^100$/);
  });
  await c.page.click("#events tbody tr:first-child a");
  await c.page.click('.crumbs a:has-text("back")');
  await c.page.click('button:has-text("Publish…")');
  await c.page.goBack();
  await c.says("#fields", /Offset100/);
  await c.page.goForward();
  await c.page.waitForSelector("#events");
  assert.equal(await c.page.$("dialog.ask"), null);
});

test("a hub that has another store is shown as it is, and a topic that is new", async () => {
  await c.go("#/topics");
  await c.says(".window", /numbers/);
  const tail = await c.tab(), gone = await c.tab();
  await c.signIn(hub, all, "#/topics/back/live", tail);
  await c.says("#tail-state", /Live/, tail);
  await publish("back", ["of the store before"]);
  await c.says("#tail", /of the store before/, tail);
  await c.signIn(hub, all, "#/topics/numbers", gone);
  await c.says("#events", /9007199254740993/, gone);
  await c.refusing(async () => {
    await c.page.context().setOffline(true); // until the topic is there again: a page that finds none says so, and begins with nothing
    await hub.stop();
    rmSync(join(hub.dir, "store"), { recursive: true });
    await hub.run();
    await publish("back", ["of the new store"]);
    await c.page.context().setOffline(false);
    await c.says(".window", /^(?!.*numbers).*back/s);
    await c.says(".note.bad", /no topic "numbers"/, gone);
    assert.equal(await gone.$("#events"), null);
    await c.says("#tail-state", /has begun anew/, tail);
    await publish("back", ["and goes on"]);
    await c.says("#tail", /and goes on/, tail);
    assert.doesNotMatch(await tail.innerText("#tail"), /of the store before/);
  });
  await publish("another", [1]);
  await c.says(".window", /another/);
  await tail.close();
  await gone.close();
});

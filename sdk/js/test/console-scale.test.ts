import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before } from "node:test";
import type { AnyTopics, Hub } from "../src/index.ts";
import { Console } from "./console.ts";
import { test, TestHub } from "./harness.ts";

// The console over much: topics, dead letters and a trace of many events. EVENTHUB_CONSOLE_SIZE=full has the sizes
// that docs/sizing.md has figures for; without it they are large enough that lists are windows.

const full = process.env.EVENTHUB_CONSOLE_SIZE === "full";
const topics = full ? 10_000 : 400, letters = full ? 1_000_000 : 240, traced = full ? 5_000 : 300;

let hub: TestHub, ops: Hub<AnyTopics>, c: Console;

async function api(method: string, path: string, body?: string): Promise<unknown> {
  const response = await fetch(`http://127.0.0.1:${hub.http}${path}`, { method, ...(body === undefined ? {} : { body }) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text === "" ? undefined : JSON.parse(text);
}

/** Publishes so many events, some batches at a time. */
async function publish(n: number, event: (i: number) => object): Promise<void> {
  const size = 1_000;
  let next = 0;
  await Promise.all(Array.from({ length: 4 }, async () => {
    for (let from = next; from < n; from = next) {
      next = from + size;
      await api("POST", "/v1/publish", JSON.stringify({ events: Array.from({ length: Math.min(size, n - from) }, (_, i) => event(from + i)) }));
    }
  }));
}

/** Gives all events of a group up. */
async function giveUp(topic: string, n: number): Promise<void> {
  const at = `/v1/topics/${topic}/groups/billing`;
  let left = n;
  await Promise.all(Array.from({ length: 4 }, async () => {
    while (left > 0) {
      const { deliveries } = await api("POST", `${at}/pull?max=1000&wait_ms=1000`, '{"from":"earliest"}') as { deliveries: { event: { offset: number }; ctx: { lease: string } }[] };
      left -= deliveries.length;
      const even = deliveries.filter((d) => d.event.offset % 2 === 0), odd = deliveries.filter((d) => d.event.offset % 2 === 1);
      for (const [part, reason] of [[even, "no such street"], [odd, "timeout"]] as const) {
        if (part.length > 0) await api("POST", `${at}/nack`, JSON.stringify({ leases: part.map((d) => d.ctx.lease), terminal: true, reason }));
      }
    }
  }));
}

async function timed(what: string, run: () => Promise<void>): Promise<void> {
  const began = performance.now();
  await run();
  if (full) console.log(`${what}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
}

before(async () => {
  hub = await TestHub.apart();
  ops = await hub.connect();
  await timed(`${topics} topics`, () => publish(topics, (i) => ({ topic: `fleet.t${String(i).padStart(5, "0")}`, payload: { n: i } })));
  await timed(`${letters} dead letters`, async () => {
    await publish(letters, (i) => ({ topic: "orders", key: `customer-${i % 1000}`, payload: { total: i } }));
    await giveUp("orders", letters);
  });
  await timed(`a trace of ${traced} events`, async () => {
    await ops.publish("chain.placed", { total: 5 }, { id: "root" });
    await api("POST", "/v1/topics/chain.shipped/groups/mail/pull?max=1", '{"from":"earliest"}').catch(() => undefined);
    const wide = Math.ceil(traced / 10); // ten steps below, each of so many events
    await publish(traced - 1, (i) => ({ topic: i % 2 === 0 ? "chain.billed" : "chain.shipped", id: `e-${i}`, payload: { n: i }, caused_by: [i < wide ? "root" : `e-${i - wide}`] }));
  });
  c = await Console.open();
});

after(async () => {
  await c?.close();
  await ops?.close();
  await hub?.end();
});

/** Loads a page and returns when there was something of use on it, and how long the longest task was, in ms. */
async function load(hash: string, useful: string): Promise<{ paint: number; longest: number }> {
  await c.page.goto("about:blank");
  await c.page.goto(hub.console + hash, { waitUntil: "commit" });
  const paint = await c.page.evaluate((at) => new Promise<number>((resolve) => {
    const look = (): void => { requestAnimationFrame(() => { if (document.querySelector(at)) resolve(performance.now()); else look(); }); };
    look();
  }), useful);
  return { paint, longest: await longest() };
}

/** How long the longest task of the page was, once it has nothing more to do. */
async function longest(): Promise<number> {
  return c.page.evaluate(() => new Promise<number>((resolve) => { requestIdleCallback(() => { resolve((window as unknown as { longest: number }).longest); }); }));
}

function figures(what: string, of: { paint: number; longest: number }): void {
  console.log(`${what}: useful after ${of.paint.toFixed(0)} ms, the longest task is ${of.longest.toFixed(0)} ms (0: none above 50)`);
}

test("an open page takes a message a second, and few bytes", async () => {
  await ops.publish("flood", 0);
  const load = publishing();
  const cdp = await c.context.newCDPSession(c.page);
  await cdp.send("Network.enable");
  let bytes = 0, chunks = 0;
  cdp.on("Network.dataReceived", (e) => { bytes += e.dataLength; chunks++; });
  const seconds = full ? 8 : 2;
  for (const [hash, useful] of [["#/", ".tile"], ["#/groups", ".window tbody tr"], ["#/topics", ".window tbody tr"], ["#/topics/flood", ".tile"], ["#/topics/flood/live", "#tail tbody tr"], ["#/connections", "#connections"]] as const) {
    await c.page.goto("about:blank");
    await c.page.goto(hub.console + hash);
    await c.page.waitForSelector(useful);
    await message(); // what the page loads when it is opened is over with the next one
    bytes = chunks = 0;
    for (let i = 0; i < seconds; i++) await message();
    console.log(`${hash}: ${(bytes / seconds / 1024).toFixed(1)} KiB and at most ${(chunks / seconds).toFixed(1)} messages a second`);
    assert.ok(bytes / seconds <= 64 << 10, `${hash}: ${bytes} bytes in ${seconds} messages`);
    assert.ok(chunks / seconds <= 20, `${hash}: ${chunks} chunks in ${seconds} messages`);
  }
  if (full) {
    const { totals } = await c.page.evaluate(async () => {
      const reader = (await fetch("/console/live")).body?.pipeThrough(new TextDecoderStream()).getReader();
      for (let n = 0, text = ""; ;) {
        text += (await reader?.read())?.value ?? "";
        const list = text.split("\n\n");
        if (list.length > 3 && n++ >= 0) { void reader?.cancel(); return JSON.parse(list[2]?.replace(/^event: live\ndata: /, "") ?? "") as { totals: { published: number } }; }
      }
    });
    console.log(`${Math.round(totals.published)} events are published a second`);
  }
  await cdp.detach();
  await load();
  await c.clean();
}, 300_000);

/** The next message of the live stream of the page has come. */
async function message(): Promise<void> {
  const seen = await c.page.evaluate(() => new Promise<boolean>((resolve) => {
    // Each message draws: the footer, the link or the rows are touched at least.
    const root = document.querySelector("#app");
    if (!root) { resolve(false); return; }
    const watch = new MutationObserver(() => { watch.disconnect(); setTimeout(() => { resolve(true); }, 500); });
    watch.observe(root, { subtree: true, childList: true, characterData: true, attributes: true });
  }));
  assert.ok(seen);
}

/** Publishes until it is called: as fast as the hub takes it, or some. */
function publishing(): () => Promise<void> {
  if (full) {
    const child = spawn(process.env.EVENTHUB_BINARY ?? "", ["bench", "publish", "--url", hub.url, "--topic", "flood", "--duration", "200s", "--batch", "100", "--in-flight", "1000", "--connections", "4", "--payload", "100"], { stdio: "inherit" });
    const ended = new Promise<void>((resolve) => { child.once("exit", () => { resolve(); }); });
    return async () => { child.kill("SIGINT"); await ended; };
  }
  const timer = setInterval(() => { void ops.publishBatch(Array.from({ length: 100 }, (_, n) => ({ topic: "flood", payload: { n } }))); }, 50);
  return async () => { clearInterval(timer); await ops.publish("flood", 0); };
}

test("a page of many topics is a window", async () => {
  figures("overview", await load("#/", ".tile"));
  figures("groups", await load("#/groups", ".window tbody tr"));
  figures("topics", await load("#/topics", ".window tbody tr"));
  await c.says(".tools [role=status]", new RegExp(`^${(topics + 6).toLocaleString("en")} topics$`));
  assert.ok(await c.page.$$eval(".window tbody tr", (list) => list.length) < 70);
  await c.page.evaluate(() => { const w = document.querySelector(".window") as HTMLElement; w.scrollTop = w.scrollHeight; });
  await c.says(".window tbody th", /^orders\.dlq$/);
  await c.page.fill("#search", "t00123 fleet");
  await c.says(".tools [role=status]", /^1 topic$/);
  console.log(`topics, after scrolling and a search: the longest task is ${(await longest()).toFixed(0)} ms`);
  await c.clean();
}, 120_000);

test("dead letters are listed and counted, however many there are", async () => {
  figures("dead letters", await load("#/dlq", "#letter-groups tbody tr"));
  await c.says("#letter-groups tbody tr", new RegExp(`^billingorders${letters.toLocaleString("en")}`));
  figures("dead letters of a group", await load("#/dlq/orders/billing", "#letters tbody tr"));
  const began = performance.now();
  await c.page.fill("#letters-reason", "timeout");
  await c.page.waitForFunction(() => [...document.querySelectorAll("#letters tbody tr")].every((r) => /timeout/.test(r.textContent ?? "")));
  console.log(`dead letters with a reason: ${(performance.now() - began).toFixed(0)} ms`);
  await c.page.click('button:has-text("Redrive all of this list…")');
  const asked = performance.now();
  await c.says("#redrive-plan", new RegExp(`${(letters / 2).toLocaleString("en")} events of ${(letters / 2).toLocaleString("en")} dead letters would go back`));
  console.log(`the dry run of a redrive of ${letters / 2}: ${(performance.now() - asked).toFixed(0)} ms; the longest task is ${(await longest()).toFixed(0)} ms`);
  await c.page.fill("#redrive-rate", String(Math.ceil(letters / 2 / 4))); // of four seconds some are seen
  if (!full) {
    await c.page.click('dialog.ask .buttons button:has-text("Redrive")');
    await c.page.waitForSelector("dialog.ask progress");
    await c.says("dialog.ask", new RegExp(`${letters / 2} events went back`));
  }
  await c.page.keyboard.press("Escape");
  await c.clean();
}, 600_000);

test("a trace is a graph of the nearest and a list of all, in which one goes on", async () => {
  figures("a trace", await load("#/trace/root", "#graph .node.here"));
  await c.says("main [role=status]", new RegExp(`^${traced.toLocaleString("en")} events, ${(traced - 1).toLocaleString("en")} links$`));
  assert.equal(await c.page.$$eval("#graph .node", (list) => list.length), 100);
  await c.says("main .dim", new RegExp(`The nearest 100 are drawn; the list has ${(traced - 100).toLocaleString("en")} more`));
  console.log(`all of the trace: the longest task is ${(await longest()).toFixed(0)} ms`);
  assert.ok(await c.page.$$eval("#trace tbody tr", (list) => list.length) < 70);
  await c.page.evaluate(() => { const w = document.querySelector(".window") as HTMLElement; w.scrollTop = w.scrollHeight; });
  await c.says("#trace tbody tr", /^\+10/);
  const last = await c.page.$$eval("#trace tbody tr:not(.space) td:nth-child(3)", (list) => list.at(-1)?.textContent ?? "");
  await c.page.click(`#trace a[href="#/trace/${last}"]`);
  await c.says("h1", new RegExp(`^${last}$`));
  await c.says("main [role=status]", /^11 events, 10 links$/);
  await c.accessible("a trace");
  await c.clean();
}, 120_000);

/** Works off all of a group but the first event, which a member keeps. */
async function allButTheFirst(topic: string, n: number): Promise<void> {
  const at = `/v1/topics/${topic}/groups/worker`;
  await new Promise<void>((has, fails) => {
    ops.subscribe(topic, { group: "worker", from: "earliest", maxInFlight: 1, ackTimeoutMs: 3_600_000 }, async () => { has(); await new Promise<never>(() => undefined); }).catch(fails);
  });
  let left = n - 1;
  await Promise.all(Array.from({ length: 4 }, async () => {
    while (left > 0) {
      const { deliveries } = await api("POST", `${at}/pull?max=1000&wait_ms=1000`) as { deliveries: { ctx: { lease: string } }[] };
      left -= deliveries.length;
      if (deliveries.length > 0) await api("POST", `${at}/ack`, JSON.stringify({ leases: deliveries.map((d) => d.ctx.lease) }));
    }
  }));
}

// A group reads a million events above its cursor, so this is for the full size alone; the words are tested by
// console-words, and the hub's judgement by TestJudge of ops/console.
if (full) {
  test("a group at the end of its window is named, with the event that its cursor stands at", async () => {
    const window = 1_000_000;
    await timed("a full window", async () => {
      await publish(window + 500, (i) => ({ topic: "stuck.window", payload: i }));
      await allButTheFirst("stuck.window", window);
    });
    await load("#/", ".tile");
    await c.says('.wrong li[data-kind="window"]', /worker in stuck\.window is at the end of its window.*The cursor stands at event 1, which has been with .*501 events are not done/);
    await c.shot("window");
    await c.page.click('.wrong li[data-kind="window"] h3 a');
    await c.says("#standing", /The cursor stands at event 1/);
    await c.clean();
  }, 900_000);
}

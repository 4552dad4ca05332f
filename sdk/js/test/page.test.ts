import assert from "node:assert/strict";
import { existsSync, mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { hostname } from "node:os";
import { fileURLToPath } from "node:url";
import { after, before } from "node:test";
import { chromium, type Browser, type Page } from "playwright-core";
import type { Hub } from "../src/index.ts";
import { seeded, test, TestHub } from "./harness.ts";

// The page of `eventhub demo`, served by the real binary, in a real browser: with the processes of this machine, and
// two thousand of a machine that there is not.
const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const artefacts = fileURLToPath(new URL("../../bin/page/", `file://${process.env.SDK_ROOT ?? ""}`));
const seed = Number(process.env.EVENTHUB_JS_SEED ?? Date.now() % 1_000_000);
const random = seeded(seed);
const many = 2_000;
const names = ["postgres", "nginx", "chromium", "node", "worker", "sshd", "redis-server", "go", "python3", "systemd"];

interface State { processId: string; name: string; host: string; pid: number; cpu_pct: number; mem_mb: number; last_seen_ts: number; status: "alive" | "stale" }
interface Watched { longest: number; added: number; removed: number }

let demo: TestHub, browser: Browser, page: Page, hub: Hub<Record<string, unknown>>;
const failures: string[] = [];
const states = Array.from({ length: many }, (_, i): State => {
  const name = `${names[i % names.length] ?? ""}-${i}`, pid = 10_000 + i;
  return { processId: `plant:${name}:${pid}`, name, host: "plant", pid, cpu_pct: random() * 40, mem_mb: 5 + random() * 900, last_seen_ts: Date.now(), status: "alive" };
});

async function say(list: (State | { processId: string; removed: true })[]): Promise<void> {
  for (let i = 0; i < list.length; i += 500) {
    await hub.publishBatch(list.slice(i, i + 500).map((s) => ({ topic: "process.state", key: s.processId, payload: "removed" in s ? null : s })));
  }
}

/** All of them, with other figures than before. */
function beat(): State[] {
  for (const s of states) {
    s.cpu_pct = Math.max(0, s.cpu_pct + random() * 6 - 3);
    s.mem_mb = Math.max(1, s.mem_mb + random() * 4 - 2);
    s.last_seen_ts = Date.now();
  }
  return states;
}

/** A past for the processes that are to be on top, which the page has to replay: the tail does not have it. */
async function past(): Promise<void> {
  const hot = states.filter((_, i) => i % 67 === 0);
  await say(states);
  const list: State[] = [];
  for (let sample = 0; sample < 60; sample++) {
    for (const s of hot) {
      s.cpu_pct = Math.min(98, Math.max(55, (sample === 0 ? 75 : s.cpu_pct) + random() * 10 - 5));
      s.mem_mb = Math.max(60, s.mem_mb + random() * 20 - 8);
      list.push({ ...s });
    }
  }
  await say(list);
}

/** What the rows that are in the page say, from the top. */
function rows(): Promise<{ name: string; pid: number; cpu: number; memory: string; status: string; fade: string; at: number }[]> {
  return page.$$eval("#body .row:not([hidden])", (list) => list.map((row) => {
    const text = (cell: string): string => row.querySelector(`.${cell}`)?.textContent ?? "";
    return { name: text("name"), pid: Number(text("pid")), cpu: Number(text("cpu")), memory: text("mem"), status: text("status"), fade: (row as HTMLElement).dataset.fade ?? "", at: Number(row.getAttribute("aria-rowindex")) };
  }).sort((a, b) => a.at - b.at));
}

async function filter(text: string): Promise<void> { await page.fill("#filter", text); }

/** Waits for a row, which is the only one after the filter. */
async function only(text: string, want: RegExp): Promise<void> {
  await filter(text);
  await page.waitForFunction(([w, flags]) => {
    const list = [...document.querySelectorAll("#body .row:not([hidden])")];
    return list.length === 1 && new RegExp(w ?? "", flags).test(list[0]?.textContent ?? "");
  }, [want.source, want.flags]);
}

const plant = async (n: string): Promise<void> => {
  await filter("plant");
  await page.waitForFunction((want) => document.getElementById("shown")?.textContent?.startsWith(`${want} of `), n);
};
const linkIs = (state: string): Promise<unknown> => page.waitForSelector(`#link[data-state="${state}"]`);
const shot = async (name: string): Promise<void> => { await page.screenshot({ path: `${artefacts}${name}.png` }); };

before(async () => {
  if (!executablePath) throw new Error("the browser tests need Chromium (package chromium)");
  console.log(`seed ${seed}; screenshots are in ${artefacts}`);
  mkdirSync(artefacts, { recursive: true });
  demo = await TestHub.demo();
  hub = await demo.connect();
  await past();
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], headless: true });
  page = await browser.newPage({ viewport: { width: 1240, height: 800 }, colorScheme: "light" });
  page.setDefaultTimeout(Number(process.env.EVENTHUB_JS_TIMEOUT ?? 60_000) / 2); // says what it waited for
  page.on("pageerror", (why) => { failures.push(String(why)); });
  page.on("console", (m) => { if (/Content.Security.Policy|Trusted/i.test(m.text())) failures.push(m.text()); });
  await page.addInitScript(() => {
    const w = window as unknown as { watched: Watched };
    w.watched = { longest: 0, added: 0, removed: 0 };
    new PerformanceObserver((list) => { for (const e of list.getEntries()) w.watched.longest = Math.max(w.watched.longest, e.duration); }).observe({ type: "longtask" });
    addEventListener("DOMContentLoaded", () => {
      new MutationObserver((list) => {
        for (const m of list) {
          for (const n of m.addedNodes) if (n.nodeType === 1) w.watched.added++;
          for (const n of m.removedNodes) if (n.nodeType === 1) w.watched.removed++;
        }
      }).observe(document.getElementById("table") as Node, { childList: true, subtree: true });
    });
  });
  const answer = await page.goto(demo.page);
  assert.match(answer?.headers()["content-security-policy"] ?? "", /default-src 'none'/);
});

after(async () => {
  await browser?.close();
  await hub?.close();
  await demo?.end();
});

test("the processes of this machine are there, by heartbeats through the projector", async () => {
  await linkIs("open");
  await filter(hostname());
  await page.waitForSelector('#body .row:not([hidden])[data-fade="0"]');
  for (const row of await rows()) {
    assert.ok(row.name !== "" && row.pid > 0 && row.cpu >= 0 && /MiB|GiB/.test(row.memory), JSON.stringify(row));
  }
  // A second sample, and with it a line.
  await page.waitForFunction(() => [...document.querySelectorAll("#body .row:not([hidden]) .spark.cpu .line")].some((l) => /L/.test(l.getAttribute("d") ?? "")));
});

test("sparklines begin with the past", async () => {
  await only(`plant ${states[67]?.pid ?? 0}`, /alive/);
  await page.waitForFunction(() => [".cpu", ".mem"].every((kind) => (document.querySelector(`#body .row:not([hidden]) ${kind} .line`)?.getAttribute("d") ?? "").match(/[ML]/g)?.length === 60));
});

test("two thousand rows change without elements that come or go", async () => {
  await say(beat());
  await plant("2,000");
  const before = await page.evaluate(() => { Object.assign((window as unknown as { watched: Watched }).watched, { longest: 0, added: 0, removed: 0 }); return document.querySelectorAll("*").length; });
  const applied = await page.evaluate(() => document.querySelectorAll("#body .row").length);
  assert.ok(applied < 60 && before < 1_300, `${applied} rows and ${before} elements for ${many} processes`);
  for (let i = 0; i < 8; i++) await say(beat());
  const last = beat();
  last[many - 1] = { ...(last[many - 1] as State), cpu_pct: 399.4 };
  await say(last);
  await page.waitForFunction(() => [...document.querySelectorAll("#body .row:not([hidden]) .cpu")].some((c) => c.textContent === "399.4"));
  const { longest, added, removed } = await page.evaluate(() => (window as unknown as { watched: Watched }).watched);
  const after = await page.evaluate(() => document.querySelectorAll("*").length);
  console.log(`2,000 rows: ${before} elements; the longest task of ten rounds of updates: ${longest} ms (0: none above 50)`);
  assert.deepEqual({ added, removed, elements: after }, { added: 0, removed: 0, elements: before });
  assert.equal(await page.getAttribute("#table", "aria-rowcount"), "2001");
  await filter("");
  await shot("light");
});

test("each column sorts, and the rows that scroll into sight are the right ones", async () => {
  await plant("2,000");
  const click = (column: string): Promise<void> => page.click(`#head .${column} button`);
  const top = async (): Promise<number[]> => (await rows()).map((r) => r.pid);
  await click("pid");
  await page.waitForFunction(() => document.querySelector("#head .pid")?.getAttribute("aria-sort") === "ascending");
  await page.waitForFunction(() => document.querySelector('#body .row[aria-rowindex="2"] .pid')?.textContent === "10000");
  assert.deepEqual((await top()).slice(0, 20), Array.from({ length: 20 }, (_, i) => 10_000 + i));
  await page.evaluate(() => { (document.getElementById("scroller") as HTMLElement).scrollTop = 34 * 1_000; });
  await page.waitForFunction(() => document.querySelector('#body .row[aria-rowindex="1002"] .pid')?.textContent === "11000");
  await click("pid");
  await page.waitForFunction(() => document.querySelector('#body .row[aria-rowindex="2"] .pid')?.textContent === "11999");
  for (const [column, key] of [["name", "name"], ["mem", "mem_mb"], ["cpu", "cpu_pct"]] as const) {
    const want = [...states].sort((a, b) => {
      const [x, y] = [a[key], b[key]];
      const by = typeof x === "string" ? (x < y ? -1 : 1) : (y as number) - x;
      return by || (a.processId < b.processId ? -1 : 1);
    })[0] as State;
    if (column === "cpu") continue; // the last round had one that is not in states
    await click(column);
    await page.waitForFunction((pid) => document.querySelector('#body .row[aria-rowindex="2"] .pid')?.textContent === String(pid), want.pid);
  }
  for (const column of ["host", "status", "seen", "cpu"]) {
    await click(column);
    assert.match(await page.getAttribute(`#head .${column}`, "aria-sort") ?? "", /ending$/);
  }
  await page.waitForFunction(() => document.querySelector('#body .row[aria-rowindex="2"] .cpu')?.textContent === "399.4");
});

test("a filter has all words, and a process that is stale is faded and comes last", async () => {
  const old = states[7] as State;
  Object.assign(old, { status: "stale", last_seen_ts: Date.now() - 60_000, cpu_pct: 900 });
  await say([old]);
  await only(`PLANT ${old.pid}`, /900\.0.*stale/);
  assert.equal((await rows())[0]?.fade, "2");
  const quiet = states[8] as State; // alive, and not heard of for a while
  Object.assign(quiet, { last_seen_ts: Date.now() - 10_000 });
  await say([quiet]);
  await only(`plant ${quiet.pid}`, /alive/);
  await page.waitForFunction(() => document.querySelector('#body .row:not([hidden])[data-fade="1"]'));
  await filter("plant");
  await page.waitForFunction(() => document.querySelector('#body .row[aria-rowindex="2"] .cpu')?.textContent === "399.4"); // not 900
  await page.selectOption("#status", "stale");
  await page.waitForFunction((pid) => [...document.querySelectorAll("#body .row:not([hidden]) .pid")].map((c) => c.textContent).join() === String(pid), old.pid);
  await page.selectOption("#status", "");
  await filter("no process is called that");
  await page.waitForSelector("#empty:not([hidden])");
  await filter("");
});

test("a process shows its history by replay, which goes on live; the keyboard suffices", async () => {
  const one = states[42] as State; // its eleven states are in two parts of the replay and more
  await only(`plant ${one.pid}`, new RegExp(one.name));
  await page.focus("#body .row:not([hidden]) .name button");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#history[open]");
  assert.equal(await page.textContent("#history-name"), one.name);
  const count = (n: number): Promise<unknown> => page.waitForFunction((want) => document.querySelectorAll("#events tr").length === want, n);
  await count(11); // the first and ten rounds, which conflation may have left out of the tail
  one.mem_mb = 4321;
  await say([one]);
  await count(12);
  assert.match(await page.textContent("#events tr") ?? "", /alive.*4\.22 GiB/);
  assert.match(await page.textContent("#mem-range") ?? "", /now 4\.22 GiB/);
  assert.equal((await page.getAttribute("#mem-chart .line", "d") ?? "").match(/[ML]/g)?.length, 12);
  await shot("history");
  await page.keyboard.press("Escape");
  await page.waitForSelector("#history:not([open])", { state: "attached" });
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), one.name);
  await plant("2,000");
  await page.focus('#body .row[aria-rowindex="2"] .name button');
  for (let i = 0; i < 60; i++) await page.keyboard.press("ArrowDown");
  assert.equal(await page.evaluate(() => document.activeElement?.closest(".row")?.getAttribute("aria-rowindex")), "62");
  assert.ok(await page.evaluate(() => (document.getElementById("scroller") as HTMLElement).scrollTop > 0));
});

test("the page says that the hub is gone, and goes on by itself with no row missing", async () => {
  await filter("");
  await hub.close();
  await demo.stop("SIGKILL");
  await linkIs("away");
  await page.waitForFunction(() => /^Reconnecting… [1-9]\d* s$/.test(document.getElementById("link-text")?.textContent ?? ""));
  await shot("away");
  await plant("2,000"); // what was known stays
  await demo.run();
  hub = await demo.connect();
  const fresh: State = { ...(states[3] as State), processId: "plant:newcomer:77777", name: "newcomer", pid: 77_777 };
  const gone = states[5] as State;
  const changed = Object.assign(states[6] as State, { cpu_pct: 123.4, last_seen_ts: Date.now() });
  await say([fresh, { processId: gone.processId, removed: true }, changed]);
  await linkIs("open");
  await only("plant newcomer", /77777/);
  await only(`plant ${changed.pid}`, /123\.4/);
  await filter(`plant ${gone.pid}`);
  await page.waitForSelector("#empty:not([hidden])");
  await plant("2,000");
  await filter(hostname()); // the heartbeats of this machine go on
  await page.waitForSelector('#body .row:not([hidden])[data-fade="0"]');
});

test("dark, and on a phone", async () => {
  const background = (): Promise<string> => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await filter("");
  await say(beat());
  await page.emulateMedia({ colorScheme: "dark" });
  assert.notEqual(await background(), light);
  await shot("dark");
  await page.setViewportSize({ width: 360, height: 740 });
  await page.waitForFunction(() => document.documentElement.scrollWidth <= 360 && (document.getElementById("scroller") as HTMLElement).scrollWidth <= (document.getElementById("scroller") as HTMLElement).clientWidth);
  await shot("narrow");
  await page.click("#body .row:not([hidden]) .cpu");
  await page.waitForSelector("#history[open]");
  assert.ok(await page.evaluate(() => (document.getElementById("history") as HTMLElement).scrollWidth <= 360));
  await shot("narrow-history");
  assert.deepEqual(failures, []);
  await page.setViewportSize({ width: 1240, height: 800 });
});

test("a hub that asks for a token gets it from the page, and one with an empty store leaves no row of before", async () => {
  const guarded = await TestHub.demo("--auth-token", "a-token-of-the-demo-alone");
  try {
    await page.goto(guarded.page);
    const sign = async (token: string): Promise<void> => {
      await page.fill("#token", token);
      await page.keyboard.press("Enter");
    };
    await page.waitForSelector("#token-form:not([hidden])");
    await sign("another-token-than-that");
    await page.waitForFunction(() => document.getElementById("token-why")?.textContent !== "" && (document.getElementById("token") as HTMLInputElement).value === "");
    await page.waitForSelector("#token-form:not([hidden])");
    await sign("a-token-of-the-demo-alone");
    await linkIs("open");
    await page.waitForSelector('#body .row:not([hidden])[data-fade="0"]');
    assert.ok(await page.isHidden("#token-form"));

    const publisher = await guarded.connect({ token: "a-token-of-the-demo-alone" });
    await publisher.publish("process.state", states[0], { key: states[0]?.processId ?? "" });
    await publisher.close();
    await only("plant", new RegExp(states[0]?.name ?? ""));
    await guarded.stop("SIGKILL");
    rmSync(join(guarded.dir, "store"), { recursive: true });
    await linkIs("away");
    await guarded.run();
    await linkIs("open");
    await page.waitForSelector("#empty:not([hidden])"); // nothing is of plant
    await filter("");
    await page.waitForSelector('#body .row:not([hidden])[data-fade="0"]');
    assert.deepEqual(failures, []);
  } finally {
    await guarded.end();
  }
});

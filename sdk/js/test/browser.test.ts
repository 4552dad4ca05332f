import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { after, before } from "node:test";
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";
import type { AnyTopics, Hub } from "../src/index.ts";
import { Proxy, signal, test, TestHub } from "./harness.ts";

// The committed one-file build, on a page without a build step, in a real browser.
const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const secret = "a secret of at least thirty-two bytes, for tests";
const built = (name: string): Buffer => readFileSync(new URL(`dist/${name}`, `file://${process.env.SDK_ROOT ?? ""}`));
const html = `<!doctype html><meta charset="utf-8"><title>SDK</title><script type="module">
import * as sdk from "/eventhub.min.js";
import "/eventhub-http.min.js";
window.sdk = sdk;
window.seen = [];
window.states = [];
window.start = async (url, token) => {
  const hub = await sdk.connect(url, { token: token ? () => token : () => window.mint(), backoff: { minMs: 20, maxMs: 100 } });
  for (const s of ["connecting", "open", "closed"]) hub.on(s, () => { states.push(s); window.stated(s); });
  window.hub = hub;
};
</script>`;

let browser: Browser, context: BrowserContext, page: Page, server: Server, hub: TestHub, proxy: Proxy;
let tokenSeconds = 3600, asked = 0;
let stated = (_state: string): void => undefined;

function mint(seconds: number): string {
  const part = (x: object): string => Buffer.from(JSON.stringify(x)).toString("base64url");
  const text = `${part({ alg: "HS256" })}.${part({ sub: "page", scopes: ["*"], exp: Math.floor(Date.now() / 1000) + seconds })}`;
  return `${text}.${createHmac("sha256", secret).update(text).digest("base64url")}`;
}

before(async () => {
  if (!executablePath) throw new Error("the browser tests need Chromium (package chromium)");
  server = createServer((request, response) => {
    const js = request.url?.endsWith(".min.js");
    response.setHeader("content-type", js ? "text/javascript" : "text/html");
    response.end(js ? built(request.url ?? "") : html);
  });
  await new Promise<void>((resolve) => { server.listen(0, "127.0.0.1", resolve); });
  const origin = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  hub = await TestHub.start("--jwt-secret", secret, "--origin", origin);
  proxy = await Proxy.before(hub);
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], headless: true });
  context = await browser.newContext();
  page = await context.newPage();
  page.on("pageerror", (why) => { throw why; });
  await page.exposeFunction("mint", () => { asked++; return mint(tokenSeconds); });
  await page.exposeFunction("stated", (state: string) => { stated(state); });
  await page.goto(origin);
  await page.waitForFunction("window.sdk");
});

after(async () => {
  await browser?.close();
  await proxy?.end();
  await hub?.end();
  server?.close();
});

/** Resolves when the page's client says the state next. */
function nextState(state: string): Promise<void> {
  const s = signal();
  const before = stated;
  stated = (now) => { before(now); if (now === state) { stated = before; s.resolve(); } };
  return s.promise;
}

interface SdkWindow { start(url: string, token?: string): Promise<void>; hub: Hub<AnyTopics>; seen: unknown[]; sub: { close(): Promise<void> } }

test("a page publishes, and consumes as a member of a group", async () => {
  await page.evaluate(async (url) => { await (window as unknown as SdkWindow).start(url); }, proxy.url);
  const result = await page.evaluate(async () => {
    const { hub } = window as unknown as SdkWindow;
    const got: unknown[] = [];
    const receipt = await hub.publish("page.work", { n: 1 });
    for await (const d of hub.deliveries("page.work", { group: "pages", from: "earliest" })) { got.push(d.payload); await d.ack(); break; }
    for await (const e of hub.http.replay("page.work")) got.push(e.payload);
    return { offset: receipt.offset, got, cursor: (await hub.getCursor("page.work", "pages"))?.offset };
  });
  assert.deepEqual(result, { offset: 1, got: [{ n: 1 }, { n: 1 }], cursor: 1 });
});

test("a page's tail goes on over a lost connection, none twice and none left out", async () => {
  await page.evaluate(async () => {
    const w = window as unknown as SdkWindow;
    w.sub = await w.hub.subscribe("tail.*", { from: "latest" }, (d) => { w.seen.push(d.payload); });
    await w.hub.publish("tail.a", 1);
  });
  const open = nextState("open");
  proxy.cut();
  await open;
  await page.evaluate(async () => { await (window as unknown as SdkWindow).hub.publish("tail.a", 2); });
  await page.waitForFunction("window.seen.length >= 2");
  assert.deepEqual(await page.evaluate("window.seen"), [1, 2]);
});

test("a page that goes offline and online again publishes what waited, once", async () => {
  const gone = nextState("connecting");
  proxy.refuses = true;
  await context.setOffline(true);
  await gone;
  await page.evaluate(() => { const w = window as unknown as SdkWindow & { waiting: Promise<unknown> }; w.waiting = w.hub.publish("tail.a", 3); });
  const open = nextState("open");
  proxy.refuses = false;
  await context.setOffline(false);
  await open;
  const receipt = await page.evaluate(async () => await (window as unknown as { waiting: Promise<{ offset: number }> }).waiting);
  assert.equal(receipt.offset, 3);
  await page.waitForFunction("window.seen.length >= 3");
  assert.deepEqual(await page.evaluate("window.seen"), [1, 2, 3]);
});

test("a page's token is renewed over the same connection", async () => {
  await page.evaluate(async () => { await (window as unknown as SdkWindow).hub.close(); });
  tokenSeconds = 2;
  asked = 0;
  await page.evaluate(async (url) => { await (window as unknown as SdkWindow).start(url); (window as unknown as { states: string[] }).states.length = 0; }, hub.url);
  tokenSeconds = 3600;
  assert.equal(asked, 1);
  while (asked < 2) await new Promise((r) => setTimeout(r, 50));
  const offset = await page.evaluate(async () => (await (window as unknown as SdkWindow).hub.publish("page.renewed", 1)).offset);
  assert.equal(offset, 1);
  assert.deepEqual(await page.evaluate("window.states"), []);
  await page.evaluate(async () => { await (window as unknown as SdkWindow).hub.close(); });
});

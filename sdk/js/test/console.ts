import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";
import type { TestHub } from "./harness.ts";

// What the tests of the console share: a browser, tokens, and what must never happen on a page.

const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const root = `file://${process.env.SDK_ROOT ?? ""}`;
const artefacts = fileURLToPath(new URL("../../bin/console/", root));
/** EVENTHUB_PICTURES=1: the pictures of docs/console.md are made anew. */
const pictures = process.env.EVENTHUB_PICTURES ? fileURLToPath(new URL("../../docs/img/", root)) : "";
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", root), "utf8");

export const secret = "a secret of at least thirty-two bytes, for tests";

/** A token with these scopes, for so many seconds. */
export function mint(scopes: string[], seconds = 3600, sub = "ops"): string {
  const part = (x: object): string => Buffer.from(JSON.stringify(x)).toString("base64url");
  const text = `${part({ alg: "HS256" })}.${part({ sub, scopes, exp: Math.floor(Date.now() / 1000) + seconds })}`;
  return `${text}.${createHmac("sha256", secret).update(text).digest("base64url")}`;
}

interface Violations { policy: string[]; hacked?: boolean }

export class Console {
  /** What the pages have complained about. */
  readonly complaints: string[] = [];
  /** While the hub is away, or refuses, the browser says so too. */
  refusals = false;
  /** What was asked for meanwhile and has no answer: that it was refused may be said later. */
  readonly #asked: string[] = [];
  page!: Page;
  context!: BrowserContext;
  #browser!: Browser;

  static async open(width = 1240, height = 800): Promise<Console> {
    if (!executablePath) throw new Error("the browser tests need Chromium (package chromium)");
    mkdirSync(artefacts, { recursive: true });
    const c = new Console();
    c.#browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], headless: true });
    c.context = await c.#browser.newContext({ viewport: { width, height }, colorScheme: "light", reducedMotion: "reduce" });
    await c.context.addInitScript(() => {
      const w = window as unknown as { seen: Violations; longest: number };
      w.seen = { policy: [] };
      w.longest = 0;
      addEventListener("securitypolicyviolation", (e) => { w.seen.policy.push(`${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}`); });
      new PerformanceObserver((list) => { for (const e of list.getEntries()) w.longest = Math.max(w.longest, e.duration); }).observe({ type: "longtask", buffered: true });
    });
    c.page = await c.tab();
    return c;
  }

  /** Another page of the same browser, which is watched as well. */
  async tab(): Promise<Page> {
    const page = await this.context.newPage();
    page.setDefaultTimeout(Number(process.env.EVENTHUB_JS_TIMEOUT ?? 60_000) / 2);
    page.on("pageerror", (why) => { this.complaints.push(`error: ${why.stack ?? why.message}`); });
    page.on("dialog", (d) => { this.complaints.push(`a script of an event ran: ${d.message()}`); void d.dismiss(); });
    const answered = (url: string): boolean => this.#asked.includes(url) && this.#asked.splice(this.#asked.indexOf(url), 1).length > 0;
    page.on("request", (r) => { if (this.refusals) this.#asked.push(r.url()); });
    page.on("response", (r) => { if (r.ok()) answered(r.url()); });
    page.on("requestfailed", (r) => { if (r.failure()?.errorText === "net::ERR_ABORTED") answered(r.url()); });
    page.on("console", (m) => {
      if (m.type() !== "error" && m.type() !== "warning") return;
      // Chromium reports each answer that is an error; the page says those in place.
      if (/Failed to load resource/.test(m.text()) && (answered(m.location().url) || this.refusals)) return;
      this.complaints.push(`${m.type()}: ${m.text()} (${m.location().url})`);
    });
    return page;
  }

  async signIn(hub: TestHub, token: string | (() => string), hash = "", page = this.page): Promise<void> {
    this.refusals = true; // the first question goes without a token
    await page.goto("about:blank");
    await page.goto(hub.console + hash);
    await page.waitForSelector("#sign-in");
    await this.enter(typeof token === "string" ? token : token(), page); // its seconds begin when the page is there
    await page.waitForSelector('#link[data-state="open"]');
    this.refusals = false;
  }

  /** Signs in with a token that the hub takes for three seconds, or for none where the machine is slow, and waits until it is expired. */
  async signInBriefly(hub: TestHub, scopes: string[], sub: string, hash: string): Promise<void> {
    this.refusals = true;
    await this.page.goto("about:blank");
    await this.page.goto(hub.console + hash);
    await this.page.waitForSelector("#sign-in");
    await this.enter(mint(scopes, -2, sub)); // tokens have a leeway of five seconds
    await this.says("#sign-in-why", /expired/);
  }

  /** What is done in it is refused by the hub, which the page says in its place and the browser in its console. */
  async refusing(run: () => Promise<unknown>): Promise<void> {
    this.refusals = true;
    await run();
    this.refusals = false;
  }

  async enter(token: string, page = this.page): Promise<void> {
    await page.fill("#token", token);
    await page.keyboard.press("Enter");
  }

  /** Goes to a page without loading the console again: the token stays. */
  async go(hash: string): Promise<void> {
    await this.page.evaluate((h) => { location.hash = h; }, hash);
  }

  /** Waits until what is at the selector says that. */
  async says(selector: string, want: RegExp, page = this.page): Promise<string> {
    await page.waitForFunction(([at, source, flags]) => [...document.querySelectorAll(at ?? "")].some((e) => new RegExp(source ?? "", flags).test(e.textContent ?? "")),
      [selector, want.source, want.flags]).catch(async (why: unknown) => {
      const there = await page.$$eval(selector, (list) => list.map((e) => e.textContent));
      throw new Error(`${selector} does not say ${want}: ${JSON.stringify(there)}`, { cause: why });
    });
    return (await page.$$eval(selector, (list) => list.map((e) => e.textContent ?? ""))).find((text) => want.test(text)) ?? "";
  }

  /** A picture of the page, for people to look at. */
  async shot(name: string, documented = false): Promise<void> {
    await this.page.screenshot({ path: `${artefacts}${name}.png` });
    if (!documented || pictures === "") return;
    const to = await this.context.newCDPSession(this.page);
    const { data } = await to.send("Page.captureScreenshot", { format: "webp", quality: 60 });
    writeFileSync(`${pictures}console-${name}.webp`, Buffer.from(data, "base64"));
    await to.detach();
  }

  /** Whether the page has what keeps some people from using it. */
  async accessible(what: string): Promise<void> {
    await this.page.evaluate(axe);
    const found = await this.page.evaluate(async () => {
      const { violations } = await (window as unknown as { axe: { run(): Promise<{ violations: { id: string; impact: string; nodes: { html: string; failureSummary: string }[] }[] }> } }).axe.run();
      return violations.filter((v) => v.impact === "serious" || v.impact === "critical").map((v) => `${v.id}: ${v.nodes.map((n) => `${n.html} ${n.failureSummary}`).join("; ")}`);
    });
    assert.deepEqual(found, [], what);
  }

  /** The page fits its window, whatever it shows. */
  async fits(): Promise<void> {
    const { wide, wider, by } = await this.page.evaluate(() => ({
      wide: innerWidth, wider: document.documentElement.scrollWidth,
      by: [...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth && !e.closest(".scroll, .window")).map((e) => e.outerHTML.slice(0, 120)).slice(0, 3),
    }));
    assert.ok(wider <= wide, `${this.page.url()}: the page is ${wider} px wide in a window of ${wide}: ${by.join("\n")}`);
  }

  /** Nothing was complained about, and the policy of the page was not touched. */
  async clean(): Promise<void> {
    const { policy, hacked } = await this.page.evaluate(() => (window as unknown as { seen: Violations }).seen);
    assert.deepEqual({ complaints: this.complaints, policy, hacked: hacked ?? false }, { complaints: [], policy: [], hacked: false });
  }

  async close(): Promise<void> { await this.#browser?.close(); }
}

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { after, before } from "node:test";
import { HubError, type Delivery } from "../src/index.ts";
import { signal, test, TestHub } from "./harness.ts";

const secret = "a secret of at least thirty-two bytes, for tests";
let hub: TestHub;
before(async () => { hub = await TestHub.start("--jwt-secret", secret); });
after(async () => { await hub.end(); });

function mint(seconds: number, scopes: string[] = ["*"]): string {
  const part = (x: object): string => Buffer.from(JSON.stringify(x)).toString("base64url");
  const text = `${part({ alg: "HS256", typ: "JWT" })}.${part({ sub: "tester", scopes, exp: Math.floor(Date.now() / 1000) + seconds })}`;
  return `${text}.${createHmac("sha256", secret).update(text).digest("base64url")}`;
}

test("a token is renewed over the same connection, and what it forbids ends", async () => {
  const tokens = [mint(2), mint(3600, ["subscribe:kept", "publish:**", "read:**"])];
  let asked = 0, lost = 0;
  const renewed = signal();
  const c = await hub.connect({ token: () => { if (++asked === 2) renewed.resolve(); return Promise.resolve(tokens[Math.min(asked, 2) - 1] ?? ""); } });
  c.on("connecting", () => lost++);
  const got = signal();
  const kept = await c.subscribe("kept", { from: "latest" }, (d: Delivery) => { if (d.payload === "after") got.resolve(); });
  const forbidden = await c.subscribe("forbidden", { from: "latest" }, () => undefined);
  await renewed.promise;
  await assert.rejects(forbidden.closed, (why: HubError) => why.code === "forbidden");
  await c.publish("kept", "after");
  await got.promise;
  assert.equal(lost, 0);
  await kept.close();
  await c.close();
});

test("a token that ended is asked for until there is one that counts", async () => {
  let state: "good" | "late" = "good", late = 0;
  const warned: string[] = [];
  const c = await hub.connect({ token: () => { if (state === "late" && ++late > 3) state = "good"; return state === "good" ? mint(late ? 3600 : 2) : mint(-60); }, warn: (m) => warned.push(m) });
  state = "late";
  const open = signal();
  c.on("open", () => { open.resolve(); });
  await open.promise; // the hub has closed the connection, a second or five after the end
  assert.ok(late > 3);
  assert.match(warned.join(), /not renewed/);
  await c.publish("again", 1);
  await c.close();
});

function tokensFile(which: string): string {
  return `tokens: [{name: ${which}, token: token-number-${which}-of-the-tests, scopes: ["*"]}]\n`;
}

test("a token that is taken back for good closes the client with its code", async () => {
  const own = await TestHub.start("--auth-tokens-file", hub.file("tokens.yaml", tokensFile("one")));
  const c = await own.connect({ token: "token-number-one-of-the-tests" });
  const closed = signal<HubError | undefined>();
  c.on("closed", (detail) => { closed.resolve(detail.error); });
  const s = await c.subscribe("t", { group: "g" }, () => undefined);
  hub.file("tokens.yaml", tokensFile("two"));
  assert.equal((await closed.promise)?.code, "bad_token");
  await assert.rejects(s.closed, (why: HubError) => why.code === "bad_token");
  await own.end();
});

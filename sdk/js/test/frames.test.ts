import assert from "node:assert/strict";
import { after, before } from "node:test";
import { WebSocket } from "ws";
import { connect } from "../src/index.ts";
import { all, test, TestHub } from "./harness.ts";

let hub: TestHub;
before(async () => { hub = await TestHub.start(); });
after(async () => { await hub.end(); });

// In Node the SDK lays the frames out itself: a length has three forms, a mask is applied by words, and texts are not all ASCII.
test("texts of every length and alphabet arrive as they were sent, alone and together", async () => {
  const sizes = [...Array(300).keys(), ...[...Array(40).keys()].map((n) => 65_450 + n), 65_536, 131_071, 900_000];
  const texts = sizes.map((n) => "x".repeat(n)).concat(sizes.slice(0, 80).map((n) => "ü€😀".repeat(n)));
  const c = await connect(hub.url);
  await Promise.all(texts.map((text) => c.publish("frames.together", text)));
  for (const text of texts) await c.publish("frames.alone", text);
  for (const topic of ["frames.together", "frames.alone"]) {
    const got = (await all(c.http.replay(topic))).map((e) => e.payload as string);
    assert.equal(got.length, texts.length);
    got.forEach((text, i) => { assert.ok(text === texts[i], `${topic}: text ${i} is another`); });
  }
  await c.close();
});

test("a class of WebSockets that is given is used as it is", async () => {
  let sent = 0;
  class Counting extends WebSocket {
    override send(text: string): void {
      sent++;
      super.send(text);
    }
  }
  const c = await connect(hub.url, { WebSocket: Counting });
  for (let n = 0; n < 5; n++) await c.publish("frames.given", n);
  assert.equal(sent, 6); // with AUTH
  await c.close();
});

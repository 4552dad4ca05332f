
test("a hub that takes the client and ends each connection at once is tried less and less often", async () => {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  let came = 0;
  await once(server, "listening");
  server.on("connection", (ws) => {
    came++;
    ws.on("message", (text: Buffer) => {
      const { op } = JSON.parse(text.toString()) as { op: string };
      if (op === "AUTH") ws.send('{"op":"OK","hub":"eventhub","version":"9","protocol":1,"limits":{"max_frame_bytes":1000}}', () => { ws.close(1011); });
    });
  });
  const c2 = await connect(`ws://127.0.0.1:${(server.address() as { port: number }).port}`, { backoff: { minMs: 100, maxMs: 60_000 } });
  const attempts: (number | undefined)[] = [];
  c2.on("connecting", ({ attempt }) => { attempts.push(attempt); });
  while (attempts.length < 4) await new Promise((r) => setTimeout(r, 10));
  assert.deepEqual(attempts.slice(0, 4), [0, 1, 2, 3]);
  assert.ok(came >= 4);
  await c2.close();
  server.close();
});

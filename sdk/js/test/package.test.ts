import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";
import { build } from "esbuild";
import { test, TestHub } from "./harness.ts";

// The package as `npm pack` makes it, in a project that knows nothing of this one.
const root = process.env.SDK_ROOT ?? "";
const project = mkdtempSync(join(tmpdir(), "eventhub-project-"));
let hub: TestHub;
before(async () => {
  hub = await TestHub.start();
  const [packed] = JSON.parse(execFileSync("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", project], { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] })) as { filename: string; files: { path: string }[] }[];
  assert.ok(packed);
  const files = packed.files.map((f) => f.path);
  for (const wanted of ["dist/index.js", "dist/index.d.ts", "dist/seed.js", "dist/state.js", "dist/eventhub.min.js", "dist/eventhub-http.min.js", "dist/eventhub-state.min.js", "sibilant/event.sibilant", "sibilant/ws.sibilant", "sibilant/acl.sibilant", "package.json"]) assert.ok(files.includes(wanted), `${wanted} is not in the package`);
  assert.deepEqual(files.filter((f) => !/^(dist\/|sibilant\/|package\.json$|README)/.test(f)), []);
  const modules = join(project, "node_modules", "eventhub-sdk");
  mkdirSync(modules, { recursive: true });
  execFileSync("tar", ["xzf", join(project, packed.filename), "--strip-components=1", "-C", modules]);
  for (const needed of ["ws", "@types"]) symlinkSync(join(root, "node_modules", needed), join(project, "node_modules", needed));
  writeFileSync(join(project, "package.json"), '{"type":"module"}');
});
after(async () => {
  await hub.end();
  rmSync(project, { recursive: true, force: true });
});

const program = (from: string): string => `import { connect } from "${from}";
const hub = await connect(process.argv[2]);
console.log((await hub.publish("packed", { ok: true })).offset);
await hub.close();
`;
const run = (file: string): number => Number(execFileSync(process.execPath, [join(project, file), hub.url], { encoding: "utf8" }));

test("a fresh project in Node imports the package", () => {
  writeFileSync(join(project, "app.js"), program("eventhub-sdk"));
  assert.equal(run("app.js"), 1);
  writeFileSync(join(project, "one.js"), program("eventhub-sdk/one-file"));
  assert.equal(run("one.js"), 2);
  writeFileSync(join(project, "seed.js"), 'import { EventClient } from "eventhub-sdk/seed";\nconst c = new EventClient(process.argv[2]);\nconsole.log((await c.publish("packed", 1)).offset);\nawait c.close();\n');
  assert.equal(run("seed.js"), 3);
  // The files for pages work together, as the modules of the package do.
  for (const [connecting, state, http] of [["eventhub-sdk", "eventhub-sdk/state", "eventhub-sdk"], ["eventhub-sdk/one-file", "eventhub-sdk/one-file-state", "eventhub-sdk/one-file-http"]]) {
    writeFileSync(join(project, "state.js"), `import { connect, HubError } from "${connecting ?? ""}";\nimport { stateMap } from "${state ?? ""}";\nimport "${http ?? ""}";
const hub = await connect(process.argv[2]);
const { offset } = await hub.publish("kept", 1, { key: "k" });
const map = await stateMap(hub, "kept");
await map.waitOffset(offset);
const why = await hub.http.call("GET /v1/topics/{topic}", { params: { topic: "none" } }).catch((e) => e);
console.log(map.get("k") === 1 && why instanceof HubError && why.code === "unknown_id" ? 7 : 0);
await hub.close();
`);
    assert.equal(run("state.js"), 7);
  }
  writeFileSync(join(project, "none.js"), 'import { connect } from "eventhub-sdk/one-file";\nconst hub = await connect(process.argv[2]);\nconst why = await hub.getCursor("t", "g").catch((e) => e);\nconsole.log(why.message.includes("eventhub-http.min.js") ? 8 : 0);\nawait hub.close();\n');
  assert.equal(run("none.js"), 8);
});

test("a bundler takes it, for Node and for pages, and nothing of ws is in a page", async () => {
  await build({ entryPoints: [join(project, "app.js")], bundle: true, platform: "node", format: "esm", outfile: join(project, "bundled.mjs"), logLevel: "error" });
  assert.equal(run("bundled.mjs"), 4);
  await build({ entryPoints: [join(project, "app.js")], bundle: true, platform: "browser", format: "esm", outfile: join(project, "page.js"), logLevel: "error" });
  assert.doesNotMatch(readFileSync(join(project, "page.js"), "utf8"), /Sec-WebSocket-Key/i);
});

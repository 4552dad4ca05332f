import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, before } from "node:test";
import { promisify } from "node:util";
import { transformSync } from "esbuild";
import { test, TestHub } from "./harness.ts";

// The programs of docs/js-sdk.md: each is compiled strictly, and run against a real hub to its end.
const root = process.env.SDK_ROOT ?? "";
const dir = `${root}.test/docs`;
const run = promisify(execFile);
const page = readFileSync(`${root}../../docs/js-sdk.md`, "utf8");
const programs = [...page.matchAll(/^## (.+)$|^```ts run\n([\s\S]*?)^```$/gm)].reduce<{ title: string; text: string }[]>((list, m) => {
  if (m[2] === undefined) list.push({ title: m[1] ?? "", text: "" });
  else list.push({ title: list.at(-1)?.title ?? "", text: m[2] });
  return list;
}, []).filter((p) => p.text !== "");

let hub: TestHub;
before(async () => {
  hub = await TestHub.start();
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(dir, { recursive: true });
  programs.forEach((p, i) => { writeFileSync(`${dir}/p${i}.ts`, p.text); });
});
after(async () => { await hub.end(); });

test("there are programs, and they compile", async () => {
  assert.ok(programs.length >= 10, `${programs.length} programs`);
  await run(process.execPath, [`${root}node_modules/typescript/bin/tsc`, "--ignoreConfig", "--strict", "--noEmit", "--target", "ES2022", "--module", "NodeNext", "--lib", "ES2022,DOM,DOM.Iterable,DOM.AsyncIterable", ...programs.map((_, i) => `${dir}/p${i}.ts`)])
    .catch((why: unknown) => { throw new Error((why as { stdout: string }).stdout); });
});

for (const [i, p] of programs.entries()) {
  test(`program ${i} runs to its end: ${p.title}`, async () => {
    const { code } = transformSync(p.text.replaceAll("ws://127.0.0.1:8090", hub.url), { loader: "ts", format: "esm" });
    writeFileSync(`${dir}/p${i}.mjs`, code);
    await run(process.execPath, [`${dir}/p${i}.mjs`]).catch((why: unknown) => {
      throw new Error(`the program of "${p.title}" failed: ${(why as { stderr: string; message: string }).stderr || (why as Error).message}`);
    });
  });
}

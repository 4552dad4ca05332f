// Runs the tests against a real hub: those that are named, or all of them. EVENTHUB_BINARY is the hub.
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = fileURLToPath(new URL("../", import.meta.url));
const named = process.argv.slice(2).filter((a) => !a.startsWith("-"));
const flags = process.argv.slice(2).filter((a) => a.startsWith("-"));
const files = readdirSync(`${root}test`).filter((f) => f.endsWith(".test.ts") && (named.length === 0 || named.includes(f.replace(".test.ts", ""))));
rmSync(`${root}.test`, { recursive: true, force: true });
await build({
	entryPoints: files.map((f) => `${root}test/${f}`), outdir: `${root}.test`, outExtension: { ".js": ".mjs" },
	bundle: true, platform: "node", format: "esm", target: "node20", packages: "external", sourcemap: "inline", logLevel: "warning",
	define: { "process.env.SDK_ROOT": JSON.stringify(root) },
});
const run = spawnSync(process.execPath, ["--enable-source-maps", "--expose-gc", "--test", "--test-force-exit", "--test-reporter=spec", ...flags, ...files.map((f) => `${root}.test/${f.replace(".ts", ".mjs")}`)],
	{ stdio: "inherit", cwd: root, timeout: Math.max(900_000, Number(process.env.EVENTHUB_JS_TIMEOUT ?? 0) * 2) });
if (run.error) console.error(String(run.error));
process.exit(run.status ?? 1);

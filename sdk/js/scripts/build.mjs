// Builds dist: the modules with their types for programs and bundlers (tsc), and the one file for pages
// without a build step (esbuild). `--check` says whether the one file that is committed is current.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = fileURLToPath(new URL("../", import.meta.url));
const oneFile = `${root}dist/eventhub.min.js`;
const maxGzip = 12 * 1024;

/** Names of members that neither programs nor frames use: they are shortened. */
const inner = "partings nextCorr resent retries rejoin detached attached complaint finished isEmpty prolong resultPrefix settler release forget flush grant refuse connected closing later phase settled keep hand finish".split(" ");

const { outputFiles } = await build({
	entryPoints: [`${root}src/index.ts`], bundle: true, minify: true, format: "esm", target: "es2022",
	legalComments: "none", mangleProps: new RegExp(`^(${inner.join("|")})$`), external: ["ws"], write: false, logLevel: "warning",
});
const text = outputFiles[0].text;
const size = gzipSync(text, { level: 9 }).length;
if (size > maxGzip) {
	console.error(`sdk/js/dist/eventhub.min.js has ${size} bytes with gzip; at most ${maxGzip} are allowed`);
	process.exit(1);
}
if (process.argv.includes("--check")) {
	let committed = "";
	try {
		committed = readFileSync(oneFile, "utf8");
	} catch { /* it differs then */ }
	if (committed !== text) {
		console.error("sdk/js/dist/eventhub.min.js is not what src makes: run npm run build in sdk/js and commit it");
		process.exit(1);
	}
} else {
	writeFileSync(oneFile, text);
	execFileSync(process.execPath, [`${root}node_modules/typescript/bin/tsc`, "-p", `${root}tsconfig.build.json`], { stdio: "inherit" });
}
console.log(`one file: ${text.length} bytes, ${size} with gzip, at most ${maxGzip}`);

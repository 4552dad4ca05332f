// Builds dist: the modules with their types for programs and bundlers (tsc), and the files for pages
// without a build step (esbuild): the one that each page needs, and those that some pages load beside it. `--check`
// says whether those that are committed are current.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = fileURLToPath(new URL("../", import.meta.url));
const maxGzip = 12 * 1024;

/** Names of members that neither programs, frames nor the other files use: they are shortened. */
const inner = "partings resent retries rejoin detached attached complaint finished isEmpty prolong resultPrefix settler release forget flush grant refuse connected later phase settled keep hand finish numbered opened want quietly spot chars ready deliver advance ask begin made complete room idle post sent restart fail drop lost start kind text since promise over verdict sleep request items take give frame".split(" ");

/** The other files have what is in the one file from there. */
const beside = {
	name: "beside",
	setup(b) {
		b.onResolve({ filter: /\/(page|errors)\.ts$/ }, () => ({ path: "./eventhub.min.js", external: true }));
	},
};
/** The one file has what pages need of the platform. */
const inPages = {
	name: "inPages",
	setup(b) {
		b.onResolve({ filter: /\/platform\.ts$/ }, () => ({ path: `${root}src/page-platform.ts` }));
	},
};
const files = [
	{ name: "eventhub.min.js", entry: "page.ts", options: { plugins: [inPages], mangleProps: new RegExp(`^(${inner.join("|")})$`) }, most: maxGzip },
	{ name: "eventhub-http.min.js", entry: "page-http.ts", options: { plugins: [beside] } },
	{ name: "eventhub-state.min.js", entry: "state.ts", options: { plugins: [beside] } },
];

for (const { name, entry, options, most = Infinity } of files) {
	const { outputFiles } = await build({
		entryPoints: [`${root}src/${entry}`], bundle: true, minify: true, format: "esm", target: "es2022",
		legalComments: "none", external: ["ws"], write: false, logLevel: "warning", ...options,
	});
	const text = outputFiles[0].text, file = `${root}dist/${name}`;
	const size = gzipSync(text, { level: 9 }).length;
	if (size > most) {
		console.error(`sdk/js/dist/${name} has ${size} bytes with gzip; at most ${most} are allowed`);
		process.exit(1);
	}
	if (process.argv.includes("--check")) {
		let committed = "";
		try {
			committed = readFileSync(file, "utf8");
		} catch { /* it differs then */ }
		if (committed !== text) {
			console.error(`sdk/js/dist/${name} is not what src makes: run npm run build in sdk/js and commit it`);
			process.exit(1);
		}
	} else writeFileSync(file, text);
	console.log(`${name}: ${text.length} bytes, ${size} with gzip${most < Infinity ? `, at most ${most}` : ""}`);
}
if (!process.argv.includes("--check")) execFileSync(process.execPath, [`${root}node_modules/typescript/bin/tsc`, "-p", `${root}tsconfig.build.json`], { stdio: "inherit" });

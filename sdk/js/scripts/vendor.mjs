// Makes the libraries that the console's page loads, from the packages that package-lock.json pins, with
// their licences. `--check` says whether those that are committed are current.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = fileURLToPath(new URL("../", import.meta.url));
const target = fileURLToPath(new URL("../../../ops/console/static/vendor/", import.meta.url));
const read = (path) => readFileSync(`${root}node_modules/${path}`, "utf8");

async function bundle(contents) {
	const { outputFiles } = await build({
		stdin: { contents, resolveDir: root }, bundle: true, minify: true, format: "esm", target: "es2022",
		legalComments: "none", write: false, logLevel: "warning",
	});
	return outputFiles[0].text;
}

const packages = { preact: "LICENSE", htm: "LICENSE", uplot: "LICENSE", "@dagrejs/dagre": "LICENSE", "@dagrejs/graphlib": "LICENSE" };
const files = {
	"ui.js": await bundle(`export { render, createContext } from "preact";
		export { useReducer, useState, useEffect, useRef, useMemo, useCallback, useContext } from "preact/hooks";
		export { html } from "htm/preact";`),
	"chart.js": await bundle(`export { default } from "uplot";`),
	"chart.css": read("uplot/dist/uPlot.min.css"),
	"graph.js": await bundle(`export { layout, Graph } from "@dagrejs/dagre";`),
	"LICENSES.txt": Object.entries(packages).map(([name, file]) => {
		const { version, license } = JSON.parse(read(`${name}/package.json`));
		return `${name} ${version} (${license})\n\n${read(`${name}/${file}`).trim()}\n`;
	}).join(`\n${"-".repeat(72)}\n\n`),
};

mkdirSync(target, { recursive: true });
for (const [name, text] of Object.entries(files)) {
	if (process.argv.includes("--check")) {
		let committed = "";
		try {
			committed = readFileSync(target + name, "utf8");
		} catch { /* it differs then */ }
		if (committed !== text) {
			console.error(`ops/console/static/vendor/${name} is not what the packages make: run node scripts/vendor.mjs in sdk/js and commit it`);
			process.exit(1);
		}
	} else writeFileSync(target + name, text);
	console.log(`vendor/${name}: ${text.length} bytes, ${gzipSync(text, { level: 9 }).length} with gzip`);
}

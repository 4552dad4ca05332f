// Writes src/api.gen.ts: the types of the routes that hub.http has, from the project's OpenAPI document.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = new URL("../", import.meta.url);
const document = JSON.parse(readFileSync(new URL("../../apidoc/openapi.json", root), "utf8"));

/** The routes that the SDK has, by operationId. */
const wanted = [
	"replayEvents", "getState", "getStateOfKey", "getStateDiff", "getKeyHistory", "listDeadLetterTopics", "listDeadLetters", "getDeadLetter",
	"redriveDeadLetters", "requeueDeadLetter", "traceEvent", "getEvent", "getTopic", "listTopics", "getGroup", "listGroups",
	"seekGroup", "pauseGroup", "resumeGroup", "deleteGroup", "deleteTopic", "listScheduled",
];

const used = new Map(); // component schemas, in the order in which they are found
const name = (ref) => ref.split("/").at(-1);
const resolve = (x) => (x?.$ref ? x.$ref.slice(2).split("/").reduce((at, part) => at[part.replace(/~1/g, "/").replace(/~0/g, "~")], document) : x);

function typeOf(schema, indent = "  ") {
	if (schema === undefined || schema === true || Object.keys(schema).length === 0) return "unknown";
	if (schema.$ref) {
		if (!used.has(name(schema.$ref))) {
			used.set(name(schema.$ref), "");
			used.set(name(schema.$ref), typeOf(resolve(schema)));
		}
		return name(schema.$ref);
	}
	if ("const" in schema) return JSON.stringify(schema.const);
	if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" | ");
	for (const [word, sign] of [["oneOf", " | "], ["anyOf", " | "], ["allOf", " & "]]) {
		if (!schema[word]) continue;
		const parts = [...new Set(schema[word].map((s) => typeOf(s, indent)))].filter((t) => t !== "unknown");
		if (schema.properties) parts.unshift(objectOf(schema, indent));
		if (parts.length > 0) return parts.length === 1 ? parts[0] : parts.map((t) => (t.includes(" | ") ? `(${t})` : t)).join(sign);
	}
	if (Array.isArray(schema.type)) return schema.type.map((t) => typeOf({ ...schema, type: t }, indent)).join(" | ");
	switch (schema.type) {
		case "integer": case "number": return "number";
		case "string": return "string";
		case "boolean": return "boolean";
		case "null": return "null";
		case "array": {
			const item = typeOf(schema.items, indent);
			return /[ |&]/.test(item) && !item.startsWith("{") ? `(${item})[]` : `${item}[]`;
		}
		case "object": return objectOf(schema, indent);
	}
	return schema.properties ? objectOf(schema, indent) : "unknown";
}

function objectOf(schema, indent) {
	const properties = Object.entries(schema.properties ?? {});
	if (properties.length === 0) {
		const more = schema.additionalProperties;
		return more === false ? "Record<string, never>" : `Record<string, ${typeOf(typeof more === "object" ? more : undefined, indent)}>`;
	}
	const required = new Set(schema.required ?? []);
	return `{ ${properties.map(([key, s]) => `${/^\w+$/.test(key) ? key : JSON.stringify(key)}${required.has(key) ? "" : "?"}: ${typeOf(s, indent)}`).join("; ")} }`;
}

function parametersOf(list, where) {
	const found = list.map(resolve).filter((p) => p.in === where);
	if (found.length === 0) return undefined;
	return `{ ${found.map((p) => `${/^\w+$/.test(p.name) ? p.name : JSON.stringify(p.name)}${p.required ? "" : "?"}: ${typeOf(p.schema)}`).join("; ")} }`;
}

const operations = [];
for (const [path, item] of Object.entries(document.paths)) {
	for (const [method, op] of Object.entries(item)) {
		if (!wanted.includes(op.operationId)) continue;
		const parameters = [...(item.parameters ?? []), ...(op.parameters ?? [])];
		const answer = resolve(op.responses["200"] ?? op.responses["202"] ?? op.responses["204"]);
		const parts = [];
		const json = (x) => x?.content?.["application/json"]?.schema;
		const inPath = parametersOf(parameters, "path"), query = parametersOf(parameters, "query"), body = json(resolve(op.requestBody));
		parts.push(`params: ${inPath ?? "Record<never, never>"}`, `query: ${query ?? "Record<never, never>"}`);
		parts.push(`body: ${body ? typeOf(body) : "undefined"}`, `answer: ${json(answer) ? typeOf(json(answer)) : "undefined"}`);
		operations.push([op.operationId, method.toUpperCase(), path, parts]);
	}
}
const missing = wanted.filter((id) => !operations.some(([found]) => found === id));
if (missing.length > 0) {
	const known = Object.values(document.paths).flatMap((item) => Object.values(item).map((op) => op.operationId)).filter(Boolean);
	throw new Error(`the OpenAPI document has no ${missing.join(", ")}; it has ${known.join(", ")}`);
}

let out = "// Made by scripts/gen-api.mjs from the OpenAPI document of the hub; do not edit.\n";
for (const [id, type] of used) out += `\nexport type ${id} = ${type};\n`;
out += "\n/** What each route takes and answers. */\nexport interface Routes {\n";
for (const [, method, path, parts] of operations) out += `  "${method} ${path}": {\n    ${parts.join(";\n    ")};\n  };\n`;
out += "}\n";

const target = fileURLToPath(new URL("src/api.gen.ts", root));
if (process.argv.includes("--check")) {
	if (readFileSync(target, "utf8") !== out) {
		console.error("sdk/js/src/api.gen.ts is not what the OpenAPI document says: run node scripts/gen-api.mjs");
		process.exit(1);
	}
} else writeFileSync(target, out);

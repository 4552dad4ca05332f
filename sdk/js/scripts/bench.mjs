// Publishes in flight, and deliveries with acks, over one connection: the built SDK against the Go SDK, with the same
// limits. On the same hub, in turns; the figures are ratios of one run, and of several rounds the middle one counts.
// EVENTHUB_BINARY is the hub; node --expose-gc says what is retained.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { connect } from "../dist/index.js";

const binary = process.env.EVENTHUB_BINARY;
const count = Number(process.env.BENCH_COUNT ?? 50_000), rounds = Number(process.env.BENCH_ROUNDS ?? 5), inFlight = 256;
const dir = mkdtempSync(join(tmpdir(), "eventhub-bench-"));
const hub = spawn(binary, ["serve", "--store", dir, "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json"], { stdio: ["ignore", "ignore", "pipe"] });
const url = await new Promise((resolve) => createInterface(hub.stderr).on("line", (line) => {
	const { ws } = JSON.parse(line);
	if (ws) resolve(`ws://${ws}`);
}));
const payload = "x".repeat(254);
const heap = () => { globalThis.gc?.(); return process.memoryUsage().heapUsed; };

async function publishes(c, topic) {
	let next = 0;
	const began = performance.now();
	await Promise.all(Array.from({ length: inFlight }, async () => { while (next++ < count) await c.publish(topic, payload); }));
	return count / (performance.now() - began) * 1000;
}

async function deliveries(c, topic) {
	let handled = 0;
	const began = performance.now();
	const s = await new Promise((resolve, reject) => {
		const joined = c.subscribe(topic, { group: "bench", from: "earliest", maxInFlight: 1000, concurrency: 1000 }, () => { if (++handled === count) joined.then(resolve); });
		joined.catch(reject);
	});
	await s.drain();
	return count / (performance.now() - began) * 1000;
}

function go(...args) {
	const result = JSON.parse(execFileSync(binary, ["bench", ...args, "--url", url, "-o", "json", "--count", String(count)], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }));
	const rate = result.per_second ?? result.events_per_second ?? result.rate;
	if (!rate) throw new Error(`no rate in ${JSON.stringify(result)}`);
	return rate;
}

try {
	const c = await connect(url);
	await c.publish("warm", payload);
	const before = heap();
	const ratios = [];
	for (let round = 1; round <= rounds; round++) {
		const jsPub = await publishes(c, `bench.${round}`), goPub = go("publish", "--connections", "1", "--in-flight", String(inFlight), "--sdk");
		const jsSub = await deliveries(c, `bench.${round}`), goSub = go("subscribe", "--sdk");
		ratios.push([jsPub / goPub, jsSub / goSub]);
		console.log(`round ${round}: publish ${Math.round(jsPub)}/s, Go ${Math.round(goPub)}/s, ratio ${(jsPub / goPub).toFixed(2)}; deliver and ack ${Math.round(jsSub)}/s, Go ${Math.round(goSub)}/s, ratio ${(jsSub / goSub).toFixed(2)}`);
	}
	const middle = (at) => ratios.map((r) => r[at]).sort((a, b) => a - b)[rounds >> 1].toFixed(2);
	console.log(`the middle of ${rounds} rounds: publish ${middle(0)}, deliver and ack ${middle(1)} of the Go SDK`);
	console.log(`retained after ${2 * rounds * count} events: ${Math.round((heap() - before) / 1024)} KiB`);
	await c.close();
} finally {
	const ended = new Promise((resolve) => hub.once("exit", resolve));
	hub.kill();
	await ended;
	rmSync(dir, { recursive: true, force: true });
}

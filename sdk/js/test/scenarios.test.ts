import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ScenarioClock } from "./scenario-clock.ts";
import { Bindings, ScriptHub, type Frame, type HubStep } from "./scenario-hub.ts";
import { Program, type ProgramOptions, type ProgramStep } from "./scenario-program.ts";

/** One entry of the table that both SDKs run; docs/testing.md describes its form. */
interface Scenario { name: string; about: string; options?: ProgramOptions; steps: Step[] }

interface Step extends HubStep, ProgramStep { only?: string; why?: string; told?: string; is?: Frame; quiet?: number; after_ms?: [number, number] }

const table = ["publish", "groups", "tails", "connections"].flatMap((part) =>
  JSON.parse(readFileSync(`${process.env.SDK_ROOT ?? ""}../scenarios/${part}.json`, "utf8")) as Scenario[]);

const connected: Step[] = [{ do: "connect", as: "client" }, { accept: {} }, { told: "client", is: { kind: "ok" } }];

/** The publishes after which a client has numbers. */
const numbered: Step[] = Array.from({ length: 16 }, (_, i): Step[] => [
  { do: "publish", as: "warm", with: { topic: "warm", payload: i } },
  ...(i < 15 ? [] : [{ expect: { op: "AUTH", producer: { id: "$producer" } }, as: "auth" }]),
  { expect: { op: "PUBLISH", payload: i, seq: "$none" } }, { answer: { op: "OK", id: "x", offset: i + 1 } }, { told: "warm", is: { kind: "ok" } },
]).flat().concat({ answer: { op: "OK", producer: { id: "$producer", epoch: 5, born: 5, seq: 0, window: 4096 } }, to: "auth" });

async function play(s: Scenario): Promise<void> {
  const clock = new ScenarioClock(), vars = new Bindings();
  const hub = new ScriptHub(clock, vars), program = new Program(s.options ?? {}, hub, clock, vars);
  const unread = (): string[] => [...hub.unread(), ...program.unread()];
  const playStep = async (step: Step): Promise<void> => {
    if (step.do !== undefined) program.do(step);
    else if (step.told !== undefined) await program.told(step.told, step.is ?? {});
    else if (step.quiet !== undefined) {
      await clock.sleep(step.quiet);
      assert.deepEqual(unread(), [], "it is not quiet");
    } else await hub.play(step);
    await clock.settle();
  };
  try {
    for (const step of [...(s.options?.unconnected ? [] : connected), ...(s.options?.numbers ? numbered : []), ...s.steps]) {
      assert.equal(step.only === undefined, step.why === undefined, "only needs a reason");
      if (step.only === "go") continue;
      const began = clock.now;
      await playStep(step).catch((why: unknown) => { throw new Error(`${JSON.stringify(step)}: ${String(why)}`, { cause: why }); });
      const [least, most] = step.after_ms ?? [0, Infinity], passed = clock.now - began;
      assert.ok(passed >= least && passed <= most, `${JSON.stringify(step)}: it came after ${passed} ms`);
    }
    await clock.settle();
    assert.deepEqual(unread(), [], "after the last step there is more");
  } finally {
    await program.end();
    clock.end();
  }
}

for (const s of table) void test(`scenario: ${s.name}`, () => play(s));

test("each scenario has a name of its own and says what it is about", () => {
  assert.equal(new Set(table.map((s) => s.name)).size, table.length);
  assert.ok(table.every((s) => s.about !== ""));
});

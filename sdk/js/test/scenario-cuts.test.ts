import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ScenarioClock } from "./scenario-clock.ts";
import { Bindings, FakeSocket, patience, type Frame, type Value } from "./scenario-hub.ts";
import { ModelHub } from "./scenario-model.ts";
import { Program, type CallEvent, type ProgramOptions, type ProgramStep } from "./scenario-program.ts";

/** A scenario against a hub that answers by itself, once without a loss and then with one at each frame. */
interface CutScenario {
  name: string; about: string; options?: ProgramOptions; seed?: CallEvent[]; cutEverywhere: boolean;
  steps: (ProgramStep & { told?: string; is?: Frame; pass?: number })[];
  /** What has to be so in the end, whatever was lost. */
  end: { hub: Frame; handled?: Record<string, Value[]>; followed?: Record<string, Value[]> };
}

/**
 * Where a connection is lost: at a point, which is a frame of the client before the hub acts on it, the same
 * frame after that, or a frame of the hub after it has arrived. `again` is how many points later that of the next
 * connection is, 0 for none. `code` is that of the close frame.
 */
interface Loss { point: number; again: number; code: number }

class Cutter {
  readonly class;
  readonly model: ModelHub;
  cuts = 0;
  #at: Loss;
  #counting = false;
  #points = 0;

  constructor(seed: readonly CallEvent[], at: Loss) {
    this.model = new ModelHub(seed);
    this.#at = at;
    const serve = (s: FakeSocket): void => { this.#serve(s); };
    this.class = class extends FakeSocket {
      constructor() {
        super();
        serve(this);
      }
    };
  }

  /** Counts a point and says whether the connection is lost here. */
  #cut(): boolean {
    if (!this.#counting) return false;
    this.#points++;
    const { point, again } = this.#at;
    const next = point + (this.cuts === 1 ? again : 0);
    if (next === 0 || this.#points !== next) return false;
    this.cuts++;
    return true;
  }

  #serve(socket: FakeSocket): void {
    this.model.lost(); // there is one connection at a time
    let dead = false;
    const lose = (): true => {
      dead = true;
      socket.end(this.#at.code);
      return true;
    };
    socket.heard = (f) => {
      queueMicrotask(() => {
        if (dead || (this.#cut() && lose())) return;
        const frames = this.model.take(f);
        if (this.#cut() && lose()) return;
        for (const frame of frames) {
          socket.say(frame);
          if (this.#cut() && lose()) return;
        }
        this.#counting = true;
      });
    };
    queueMicrotask(() => { socket.open(); });
  }
}

/** One run; it says whether its losses happened. */
async function play(s: CutScenario, at: Loss): Promise<boolean> {
  const clock = new ScenarioClock(), vars = new Bindings();
  const hub = new Cutter(s.seed ?? [], at), program = new Program(s.options ?? {}, hub, clock, vars);
  try {
    for (const step of [{ do: "connect", as: "client" }, { told: "client", is: { kind: "ok" } }, ...s.steps] as CutScenario["steps"]) {
      if (step.do !== undefined) program.do(step);
      else if (step.told !== undefined) await program.told(step.told, step.is ?? {});
      else await clock.sleep(step.pass ?? 0);
      await clock.settle();
    }
    const compare = (): void => { vars.match("the hub", s.end.hub, hub.model.state()); };
    await clock.wait(() => { try { compare(); return true; } catch { return undefined; } }, patience);
    await clock.sleep(60_000); // nothing more comes of it
    compare();
    for (const [name, want] of Object.entries(s.end.handled ?? {})) assert.deepEqual(new Set(program.payloads(name)), new Set(want), name);
    for (const [name, want] of Object.entries(s.end.followed ?? {})) assert.deepEqual(program.payloads(name), want, name);
    assert.deepEqual(program.unread(), [], "there is more");
    return hub.cuts > 0;
  } finally {
    await program.end();
    clock.end();
  }
}

const table = JSON.parse(readFileSync(`${process.env.SDK_ROOT ?? ""}../scenarios/cuts.json`, "utf8")) as CutScenario[];

for (const s of table) {
  void test(`cut everywhere: ${s.name}`, async (t) => {
    assert.ok(s.cutEverywhere && s.about !== "");
    let runs = 0;
    const run = (at: Loss): Promise<boolean> => {
      runs++;
      return play(s, at).catch((why: unknown) => { throw new Error(`with a loss ${JSON.stringify(at)}: ${String(why)}`, { cause: why }); });
    };
    await run({ point: 0, again: 0, code: 1006 });
    for (const kind of [{ again: 0, code: 1006 }, { again: 0, code: 1001 }, { again: 1, code: 1006 }, { again: 4, code: 1006 }]) {
      for (let point = 1; await run({ ...kind, point }); point++);
    }
    t.diagnostic(`${runs} runs`);
  });
}

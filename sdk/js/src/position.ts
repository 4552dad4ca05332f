import type { HubFrame, WireContext, WireEvent } from "./frame.ts";

interface Place { offset: number; ts: number }

/** How many places a SUBSCRIBE may have, and how many characters they take at most. */
const maxPlaces = 10_000;
const maxChars = 1 << 20;
const placeChars = 64;

/**
 * How far a live tail is: after which event in each topic that it had. In all other topics it goes on
 * where it began. Of more topics than there is room for some events come again.
 */
export class TailPosition {
  known: string | undefined;
  /** Of a tail with the state: what the hub said last of how much of that came. */
  #snapshot: string | undefined;
  #places = new Map<string, Place>();
  #chars = 0;

  advance(e: WireEvent, ctx: WireContext): void {
    this.#snapshot = ctx.snapshot ?? this.#snapshot;
    this.#set(e.topic, e.offset, e.committed_ts ?? e.ts);
  }

  /** Takes the mark after which the state is complete: all up to there came. */
  complete(topic: string, f: HubFrame): void {
    this.#snapshot = f.snapshot ?? this.#snapshot;
    this.#set(topic, f.offset ?? 0, 0);
  }

  #set(name: string, offset: number, ts: number): void {
    const place = this.#places.get(name);
    if (place) {
      place.offset = offset;
      place.ts = ts;
      return;
    }
    this.#places.set(name, { offset, ts });
    this.#chars += placeChars + name.length;
    for (const topic of this.#places.keys()) {
      if (this.#chars <= maxChars && this.#places.size <= maxPlaces) break;
      this.#chars -= placeChars + topic.length;
      this.#places.delete(topic);
    }
  }

  get isEmpty(): boolean { return this.#places.size === 0; }

  /** What the next SUBSCRIBE says of it. */
  resume(): Record<string, unknown> {
    const places = [...this.#places].map(([topic, p]) => ({ topic, offset: p.offset, ts: p.ts }));
    return { known: this.known, snapshot: this.#snapshot, places: places.length > 0 ? places : undefined };
  }
}

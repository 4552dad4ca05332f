import type { WireEvent } from "./frame.ts";

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
  #places = new Map<string, Place>();
  #chars = 0;

  advance(e: WireEvent): void {
    const at = e.committed_ts ?? e.ts;
    const place = this.#places.get(e.topic);
    if (place) {
      place.offset = e.offset;
      place.ts = at;
      return;
    }
    this.#places.set(e.topic, { offset: e.offset, ts: at });
    this.#chars += placeChars + e.topic.length;
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
    return { ...(this.known === undefined ? {} : { known: this.known }), ...(places.length > 0 ? { places } : {}) };
  }
}

import { HubError } from "./errors.ts";
import { newId } from "./identity.ts";
import type { Request } from "./link.ts";

/** What the OK of an AUTH says of a producer. */
export interface WireProducer { id: string; born: number; seq: number }

/** After how many publishes without ids of the program's a producer is opened: what publishes less saves nothing by it. */
const openAfter = 16;
/** Of so many numbers a hub knows the answers at least. */
export const producerWindow = 4096;

/**
 * The numbers of publishes. A publish that may be sent twice has to be known the second time: by the ids of its
 * events, or by its number, which costs the hub less. Numbers are given in the order in which frames are sent. A new
 * connection says which number the hub has used last: what has a higher one was not published, and cannot be any
 * more, so it is numbered again from there on. Where the hub has forgotten the producer, nobody knows what
 * became of what was sent.
 */
export class Numbers {
  /** The producer, once it is asked for. */
  id: string | undefined;
  #born = 0;
  #last = 0;
  #made = 0;

  get on(): boolean { return this.#born > 0; }

  next(): number { return ++this.#last; }

  /** Notes a publish that had no number; true where the producer is to be opened now. */
  want(): boolean {
    if (this.id !== undefined || ++this.#made < openAfter) return false;
    this.id = newId();
    return true;
  }

  /**
   * Takes the producer of an AUTH's OK, and numbers what has no answer, in its order, if the connection is a new one.
   * The result is what has a number that means nothing any more.
   */
  opened(p: WireProducer | undefined, waiting: readonly Request[]): Request[] {
    const mine = p !== undefined && p.id === this.id, other = this.on && (!mine || p.born !== this.#born);
    const numbered = waiting.filter((r) => r.seq !== undefined);
    const lost = other ? numbered.filter((r) => r.sent || !mine) : [];
    this.#born = mine ? p.born : 0;
    if (mine) {
      this.#last = p.seq;
      for (const r of numbered) if (other ? !r.sent : (r.seq ?? 0) > p.seq) r.seq = this.next();
    }
    return lost;
  }
}

/** Why a publish whose number means nothing any more fails. */
export function forgotten(sent: boolean | undefined): HubError {
  return new HubError("unknown_producer", sent
    ? "nobody knows whether the events are published: the hub has forgotten the client"
    : "the events are not published: the hub numbers no publishes");
}

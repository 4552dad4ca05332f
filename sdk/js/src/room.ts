import { abortReason, onAbort } from "./signal.ts";

interface Waiter { items: number; size: number; grant(): void; refuse(why: Error): void }

/**
 * What the publishes that are not answered may take. Who finds none waits in line; one that asks
 * for more than there is gets it when it is alone.
 */
export class Room {
  #items = 0;
  #size = 0;
  #line: Waiter[] = [];
  #granting = false;
  #maxItems: number;
  #maxSize: number;

  constructor(maxItems: number, maxSize: number) {
    this.#maxItems = maxItems;
    this.#maxSize = maxSize;
  }

  get isEmpty(): boolean {
    return this.#items === 0 && this.#line.length === 0;
  }

  #take(items: number, size: number): boolean {
    if (this.#items > 0 && (this.#items + items > this.#maxItems || this.#size + size > this.#maxSize)) return false;
    this.#items += items;
    this.#size += size;
    return true;
  }

  /** Takes room at once, if there is some and nobody waits. */
  take(items: number, size: number): boolean { return this.#line.length === 0 && this.#take(items, size); }

  /** Calls `grant` as soon as there is room, which is taken then. */
  wait(items: number, size: number, signal: AbortSignal | undefined, grant: () => void, refuse: (why: Error) => void): void {
    const off = onAbort(signal, () => {
      this.#line = this.#line.filter((w) => w !== waiter);
      refuse(abortReason(signal));
      this.give(0, 0); // those that waited after it may fit
    });
    const waiter: Waiter = { items, size, grant: () => { off(); grant(); }, refuse: (why) => { off(); refuse(why); } };
    this.#line.push(waiter);
  }

  give(items: number, size: number): void {
    this.#items -= items;
    this.#size -= size;
    if (this.#granting) return; // who was let in gave it back at once: the loop goes on
    this.#granting = true;
    for (let w = this.#line[0]; w && this.#take(w.items, w.size); w = this.#line[0]) {
      this.#line.shift();
      w.grant();
    }
    this.#granting = false;
  }

  /** Sends everybody in line away. */
  refuse(why: Error): void {
    for (const w of this.#line.splice(0)) w.refuse(why);
  }
}

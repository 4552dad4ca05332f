import { abortReason, onAbort } from "./signal.ts";

interface Waiter { items: number; size: number; grant(): void; refuse(why: unknown): void }

/**
 * What the publishes that are not answered may take. Who finds none waits in line; one that asks
 * for more than there is gets it when it is alone.
 */
export class Room {
  #items = 0;
  #size = 0;
  #line: Waiter[] = [];
  #maxItems: number;
  #maxSize: number;

  constructor(maxItems: number, maxSize: number) {
    this.#maxItems = maxItems;
    this.#maxSize = maxSize;
  }

  get isEmpty(): boolean {
    return this.#items === 0 && this.#line.length === 0;
  }

  #fits(items: number, size: number): boolean {
    return this.#items === 0 || (this.#items + items <= this.#maxItems && this.#size + size <= this.#maxSize);
  }

  /** Takes room at once, if there is some and nobody waits. */
  take(items: number, size: number): boolean {
    if (this.#line.length > 0 || !this.#fits(items, size)) return false;
    this.#items += items;
    this.#size += size;
    return true;
  }

  /** Takes room as soon as there is some. */
  wait(items: number, size: number, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const off = onAbort(signal, () => {
        this.#line = this.#line.filter((w) => w !== waiter);
        reject(abortReason(signal));
        this.give(0, 0); // those that waited after it may fit
      });
      const waiter: Waiter = { items, size, grant: () => { off(); resolve(); }, refuse: (why) => { off(); reject(why as Error); } };
      this.#line.push(waiter);
    });
  }

  give(items: number, size: number): void {
    this.#items -= items;
    this.#size -= size;
    for (let w = this.#line[0]; w && this.#fits(w.items, w.size); w = this.#line[0]) {
      this.#line.shift();
      this.#items += w.items;
      this.#size += w.size;
      w.grant();
    }
  }

  /** Sends everybody in line away. */
  refuse(why: unknown): void {
    for (const w of this.#line.splice(0)) w.refuse(why);
  }
}

/**
 * What makes a publish that is sent twice one event: an id that is given before the event is sent
 * for the first time. This is the one place that knows how; a caller's own id wins.
 */
export interface Identified {
  id: string;
  /** The SDK made it: nobody used it before, so a duplicate is an earlier try of the same publish. */
  made: boolean;
}

/** An event of a publish that has a number: the hub makes its id. */
export const unnamed: Identified = { id: "", made: true };

export function identify(given: string | undefined): Identified {
  return given === undefined ? { id: newId(), made: true } : { id: given, made: false };
}

const hex = Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, "0"));
const pool = new Uint8Array(16 * 64);
let used = pool.length;

/** A UUIDv7: ids of one program rise with time, which the hub's index likes. */
export function newId(): string {
  if (used === pool.length) {
    crypto.getRandomValues(pool);
    used = 0;
  }
  const b = pool.subarray(used, used += 16);
  const now = Date.now();
  for (let i = 0; i < 6; i++) b[i] = Math.floor(now / 2 ** (40 - 8 * i)) & 255;
  b[6] = (b[6] ?? 0) & 15 | 0x70;
  b[8] = (b[8] ?? 0) & 63 | 0x80;
  let id = "";
  for (let i = 0; i < 16; i++) id += (i === 4 || i === 6 || i === 8 || i === 10 ? "-" : "") + (hex[b[i] ?? 0] ?? "");
  return id;
}

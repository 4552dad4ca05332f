import { HubError, messageOf } from "./errors.ts";
import { abortReason, orAbort } from "./signal.ts";
import type { TokenSource } from "./types.ts";

/** How long one question for a token may take, in ms. */
export const tokenWait = 10_000;
const leastRenewal = 5_000;
const leastRetry = 1_000;
/** A timer far ahead would not notice that a machine has slept. */
const longestRenewal = 24 * 3_600_000;

/** Asks for the token, for so long at most, and until the signal aborts. */
export async function askToken(source: TokenSource | undefined, signal: AbortSignal): Promise<string | undefined> {
  if (typeof source !== "function") return source;
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    return await orAbort(Promise.race([
      source(),
      new Promise<never>((_, reject) => {
        timer = setTimeout(() => { reject(new Error(`no token came in ${tokenWait / 1000} s`)); }, tokenWait);
      }),
    ]), signal);
  } catch (why) {
    if (signal.aborted) throw abortReason(signal);
    throw new HubError("unreachable", `the function that gives tokens failed: ${messageOf(why)}`, { cause: why });
  } finally {
    clearTimeout(timer);
  }
}

/** When a token says that it ends, epoch ms: `exp` of a JSON Web Token. Nothing is checked. */
export function endOf(token: string | undefined): number | undefined {
  const part = token?.split(".");
  if (part?.length !== 3) return undefined;
  try {
    const claims = JSON.parse(atob((part[1] ?? "").replace(/-/g, "+").replace(/_/g, "/"))) as { exp?: unknown };
    return typeof claims.exp === "number" && claims.exp > 0 && claims.exp < 2 ** 40 ? claims.exp * 1000 : undefined;
  } catch {
    return undefined;
  }
}

/**
 * In how many ms the next token is asked for: when a quarter of what is left is left. What fails is
 * tried again by the same rule, ever sooner.
 */
export function renewIn(end: number, now: number, failed: boolean): number {
  return Math.min(Math.max((end - now) * 0.75, failed ? leastRetry : leastRenewal), longestRenewal);
}

import type { Delivery } from "./delivery.ts";
import { HubError } from "./errors.ts";
import type { Outgoing } from "./publisher.ts";

/** The headers that go from an event to what results from it. */
const chain = /^(traceparent|tracestate|x-correlation-id|correlation-id|correlationid|ce-correlationid)$/i;

/** The beginning of the ids of what a group makes of a topic. */
export async function resultPrefix(group: string, topic: string): Promise<string> {
  const { subtle } = crypto as { subtle?: SubtleCrypto };
  if (!subtle) throw new HubError("bad_request", "ids of results need a secure page (https): serve it so, or give each result an id");
  const sum = new Uint8Array(await subtle.digest("SHA-256", new TextEncoder().encode(`${group}\0${topic}`)));
  return [...sum.subarray(0, 12)].map((b) => b.toString(16).padStart(2, "0")).join("");
}

/** Fills in what makes events those of a delivery: ids that are the same however often it comes. */
export function resultsOf(d: Delivery, prefix: string, events: readonly Outgoing[]): Outgoing[] {
  const headers = Object.fromEntries(Object.entries(d.event.headers ?? {}).filter(([name]) => chain.test(name)));
  return events.map((e, i) => ({
    ...e,
    id: e.id ?? `${prefix}-${d.offset}-${i}`,
    causedBy: e.causedBy ?? [d.id],
    ...(e.headers || Object.keys(headers).length > 0 ? { headers: { ...headers, ...e.headers } } : {}),
  }));
}

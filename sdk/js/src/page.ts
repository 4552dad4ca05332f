/**
 * The one file for pages without a build step: what index.ts has, but `hub.http`, which page-http.ts provides.
 * @module
 */
import { Hub } from "./hub.ts";
import type { AnyTopics, TopicMap } from "./topics.ts";
import type { ConnectOptions } from "./types.ts";

/** Connects to a hub, or to the first of several that takes the client. */
export function connect<M extends TopicMap = AnyTopics>(urls: string | readonly string[], options: ConnectOptions = {}): Promise<Hub<M>> {
  return Hub.connect<M>(urls, options);
}

export { Delivery } from "./delivery.ts";
export { HubError, messageOf, retryAfter, terminal } from "./errors.ts";
export { Hub, provideHttp } from "./hub.ts";
export { Subscription } from "./subscription.ts";

/**
 * The SDK for browsers and Node. `connect` gives a {@link Hub}; docs/js-sdk.md is the guide.
 * @module
 */
import { HttpApi } from "./http.ts";
import { Hub, provideHttp } from "./hub.ts";
import { NodeFrames } from "./node.ts";
import { provideFrames } from "./platform.ts";
import type { AnyTopics, TopicMap } from "./topics.ts";
import type { ConnectOptions } from "./types.ts";

/** Connects to a hub, or to the first of several that takes the client. */
export function connect<M extends TopicMap = AnyTopics>(urls: string | readonly string[], options: ConnectOptions = {}): Promise<Hub<M>> {
  provideHttp(HttpApi);
  provideFrames(NodeFrames);
  return Hub.connect<M>(urls, options);
}

export { Delivery } from "./delivery.ts";
export type { DeliveryOf, NackOptions } from "./delivery.ts";
export { HubError, retryAfter, terminal } from "./errors.ts";
export type { HubCode, HubErrorDetails } from "./errors.ts";
export { Hub } from "./hub.ts";
export type { Deliveries, EventOf, Handler, MoreTopics, Transformer } from "./hub.ts";
export { HttpApi } from "./http.ts";
export type { CallOptions, Route } from "./http.ts";
export type { LinkState, StateDetail } from "./link.ts";
export { Subscription } from "./subscription.ts";
export type { AnyTopics, Matches, PayloadOf, TopicMap, TopicName, TopicsOf } from "./topics.ts";
export type * from "./types.ts";
export type { DeadLetter, RedriveResult, Routes, SeekPlan, Trace } from "./api.gen.ts";

/** An event as the hub delivers it. `K` is its topic, `T` the type of its payload. */
export interface EventRecord<T = unknown, K extends string = string> {
  /** Position in the topic, from 1. */
  offset: number;
  /** Epoch ms: the publisher's, or the commit time. */
  ts: number;
  /** The hub's clock at commit, if the publisher gave `ts`. */
  committed_ts?: number;
  id: string;
  topic: K;
  partition: number;
  key?: string;
  sid?: string;
  headers?: Record<string, string>;
  tags?: string[];
  caused_by?: string[];
  payload: T;
}

/** What a publish may say about its event. */
export interface PublishOptions {
  /** 1–64 of `A–Z a–z 0–9 . _ : -`; made by the SDK if it is left out. */
  id?: string;
  /** Epoch ms. */
  ts?: number;
  key?: string;
  sid?: string;
  headers?: Record<string, string>;
  tags?: string[];
  causedBy?: string[];
  /** The event enters the log so many ms later. */
  delayMs?: number;
  /** The event enters the log at that time, in epoch ms. */
  deliverAt?: number;
  /** Publish only if this holds; otherwise the code is `conflict`. */
  expect?: { keyOffset: number } | { topicOffset: number };
}

/** How long a request lasts, and whom it waits for. */
export interface WaitOptions {
  /** The promise resolves when these groups have acked. */
  waitFor?: string[];
  /** For how long at most, 10000 if it is left out. */
  waitMs?: number;
  signal?: AbortSignal | undefined;
}

/** Where an event is in the log. */
export interface Receipt {
  id: string;
  /** 0 of a delayed event. */
  offset: number;
  /** An id that the caller gave was there before. */
  duplicate: boolean;
  /** Of a delayed event, epoch ms. */
  deliverAt?: number;
}

/** The events with offsets after `after` and before `first` were removed before they came. */
export interface Gap {
  topic: string;
  after: number;
  first: number;
  compacted?: number;
  tombstones?: number;
}

/** A group that had ended because nobody used it. */
export interface Ended {
  topic: string;
  ts: number;
  cursor: number;
}

export interface Filter {
  key?: string;
  headers?: Record<string, string>;
  tags?: string[];
  cel?: string;
}

/**
 * What a live tail with `from: "snapshot"` says between events. With `count`: the state is complete, it was that at
 * `offset` and had so many events; keys that it did not have are gone. With `horizon`: events at lower offsets were
 * removed; a key whose newest event is one of them is gone.
 */
export type StateMark =
  | { topic: string; offset: number; count: number; horizon?: undefined }
  | { topic: string; horizon: number; offset?: undefined; count?: undefined };

/** Where a stream begins. */
export type From = "latest" | "earliest" | "ts" | "afterId" | "offset";

/** What a subscription to a group and a live tail have in common. */
export interface StreamOptions {
  ts?: number;
  afterId?: string;
  offset?: number;
  /** More topics or patterns. */
  topics?: string[];
  filter?: Filter | string;
  /** `false`: fail instead of creating a topic or a group. */
  create?: boolean;
  batchSize?: number;
  maxInFlight?: number;
  /** How many handlers run at once; 1 keeps the order. */
  concurrency?: number;
  signal?: AbortSignal | undefined;
  /** Called once for each gap, before the delivery that is after it. */
  onGap?(gap: Gap): void;
}

export interface GroupOptions extends StreamOptions {
  group: string;
  /** Counts only when the group is created. */
  from?: From;
  /** How soon others get the events of a program that died; handlers may take longer. */
  ackTimeoutMs?: number;
  /** `false`: an event counts as acked when it is sent. */
  manualAck?: boolean;
  ordering?: "none" | "key";
  maxAttempts?: number;
  backoff?: { minMs?: number; maxMs?: number };
  /** Called where the group had ended and begins anew. */
  onEnded?(ended: Ended): void;
}

export interface TailOptions extends StreamOptions {
  group?: undefined;
  /** `snapshot`: the newest event of each key first, see `Delivery.state`, then all that come after. */
  from?: From | "snapshot";
  /** Called for each mark of a tail from `snapshot`, in its place between the deliveries. */
  onState?(mark: StateMark): void;
  /** The newest event of each topic and key, once in that time. */
  conflate?: { everyMs: number };
}

export type SubscribeOptions = GroupOptions | TailOptions;

/** How far a group is in a topic. */
export interface CursorPosition {
  topic: string;
  lastId?: string;
  lastTs?: number;
  /** Everything at or below it is done. */
  offset?: number;
}

/** Where a group is moved to. */
export type SeekTarget = "earliest" | "latest" | { ts: number } | { afterId: string } | { offset: number };

/** What the hub says of itself. */
export interface HubInfo {
  hub: string;
  version: string;
  protocol: number;
  durability: string;
  limits: { max_frame_bytes: number; max_payload_bytes: number; max_subscriptions: number };
}

export type TokenSource = string | (() => string | Promise<string>);

export interface ConnectOptions {
  /** A token, or a function that is asked for one before each sign-in and before a token ends. */
  token?: TokenSource | undefined;
  /** How the program calls itself; everybody who may look at the hub sees it. */
  name?: string;
  /** Ends the attempt to connect, and nothing after that. */
  signal?: AbortSignal | undefined;
  /** Pauses between attempts to connect again: from `minMs` doubled up to `maxMs`, with jitter. */
  backoff?: { minMs?: number; maxMs?: number };
  /** Events that may be published and not answered; more wait. */
  maxPending?: number;
  /** Characters of frames that may be published and not answered; more wait. */
  maxPendingChars?: number;
  /** Called for what nobody else is told of; `console.warn` if it is left out. */
  warn?(message: string, error?: unknown): void;
  /** The class of WebSockets, where the platform's own, or that of `ws`, is not the one to use. */
  WebSocket?: WebSocketClass;
}

/** The part of a WebSocket that the SDK uses. */
export interface WebSocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  send(text: string): void;
  close(code?: number, reason?: string): void;
}

export type WebSocketClass = new (url: string) => WebSocketLike;

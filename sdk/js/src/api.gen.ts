// Made by scripts/gen-api.mjs from the OpenAPI document of the hub; do not edit.

export type StoredTopic = string;

export type TopicInfo = { topic: StoredTopic; first_offset: Head; head: Head; horizon: number; first_ts?: Millis; head_ts?: Millis; head_id?: EventID; groups: number; kept?: TopicUsage; removal?: TopicRemoval; compaction?: TopicCompaction; index?: TopicIndex; settings?: TopicSettings; settings_from?: SettingsSource; idle?: TopicIdle; snapshots?: TopicSnapshots };

export type Head = number;

export type Millis = number;

export type EventID = string;

export type TopicUsage = { events: number; bytes: number; at_least?: true; ids_kept_ms: number };

export type TopicRemoval = { events: number; bytes: number; last_ts?: Millis; state: "waiting" | "counting" | "off" };

export type TopicCompaction = { compacted: number; tombstones: number; events: number; bytes: number; last_ts?: Millis; state: "running" | "waiting" | "off"; held_by?: "min_age" | "group"; held_group?: string; held_from?: number; held_until_ts?: number };

export type TopicIndex = { state: "none" | "building" | "ready"; done?: number; total?: number };

export type TopicSettings = { retention?: { age?: Period; bytes?: number; count?: number }; compaction?: { min_age?: Period; hold?: Period; grace?: Period }; key_required?: boolean; state?: "auto" | "on" | "off"; group_idle_expiry?: Period; snapshot?: { topic?: StoredTopic; every?: Period; changes?: number; batch_keys?: Key[]; key_source?: string } };

export type Period = string;

export type Key = string;

export type SettingsSource = { source: "file" | "stored" | "default"; entry?: string; version?: SettingsVersion };

export type SettingsVersion = number;

export type TopicIdle = { groups: number; next?: Group; next_ts?: Millis; ended: EndedGroup[] };

export type Group = string;

export type EndedGroup = { group: Group; ts: Millis; cursor: Head };

export type TopicSnapshots = { topic: StoredTopic; state: "off" | "waiting" | "writing"; failed?: string; next_ts?: Millis; snapshots: SnapshotInfo[] };

export type SnapshotInfo = { id: string; offset: Head; ts: Millis; count: number; first: number };

export type Event = { offset: Offset; id: EventID; ts: number; committed_ts?: number; topic: StoredTopic; partition?: number; key?: Key; sid?: SID; headers?: Headers; tags?: Tags; caused_by?: CausedBy; payload: Payload };

export type Offset = number;

export type SID = string;

export type Headers = Record<string, string>;

export type Tags = string[];

export type CausedBy = EventID[];

export type Payload = unknown;

export type Trace = { id: EventID; nodes: TraceNode[]; edges: TraceEdge[]; truncated: boolean };

export type TraceNode = { id?: EventID; distance: number; missing?: true; hidden?: true; topic?: StoredTopic; offset?: Offset; ts?: Millis; key?: Key; caused_by?: CausedBy; preview?: string; groups?: EventGroup[] };

export type EventGroup = { group: Group; state: "leased" | "waiting" | "held" | "ack_and_publish" | "dead_lettering" | "done" | "ahead" | "dead_lettered"; offset: Offset; id?: EventID; attempt: number; member?: Peer; since_ts?: Millis; deadline_ts?: Millis; due_ts?: Millis; history?: Attempt[]; redriven?: number };

export type Peer = { transport?: "ws" | "http"; name?: string; client?: ClientName };

export type ClientName = string;

export type Attempt = { attempt: number; member?: Peer; since_ts: Millis; ended_ts: Millis; why: "expired" | "nacked" | "disconnected"; reason?: Reason };

export type Reason = string;

export type TraceEdge = { cause: number; effect: number; cycle?: true };

export type GroupInfo = { topic: StoredTopic; group: Group; cursor: Head; epoch: number; last_id?: EventID; last_ts?: Millis; head: Head; head_id?: EventID; head_ts?: Millis; lag: number; oldest_ts?: Millis; in_flight: number; waiting: number; held?: number; redriven?: number; paused?: true; blocked_by?: Blocked; idle?: GroupIdle; ordering: "none" | "key"; filter?: FilterObject; max_attempts: number; backoff_min_ms: number; backoff_max_ms: number; members: MemberInfo[] };

export type Blocked = { kind: "paused" | "filter" | "no_members" | "members_paused" | "members_full" | "window" | "key"; reason?: string; key?: Key; offset?: Offset; id?: EventID; state?: "leased" | "waiting" | "held" | "ack_and_publish" | "dead_lettering"; member?: Peer; since_ts?: Millis };

export type GroupIdle = { expiry: Period; idle_ms: number; ends_ts?: Millis; patterns?: Pattern[] };

export type Pattern = string;

export type FilterObject = { key?: string; headers?: Headers; tags?: Tags; cel?: string };

export type MemberInfo = { transport?: "ws" | "http"; name?: string; client?: ClientName; in_flight: number; max_in_flight: number; since_ts: Millis };

export type Scheduled = { topic: StoredTopic; id: EventID; key?: Key; deliver_at: Millis; seq: number };

export type Switch = "1" | "true" | "0" | "false";

export type From = "latest" | "earliest" | "ts" | "after_id" | "offset";

export type Moment = number | string;

export type Start = { from: From; ts?: number; after_id?: EventID; offset?: Head };

export type SeekPlan = { topic: StoredTopic; group: Group; from: Head; to: Head; head: Head; again: number; skipped: number; voided: number; applied: boolean; epoch: number; gap?: SeekGap };

export type SeekGap = { after: Head; first: Offset; compacted?: Compacted; tombstones?: Tombstones };

export type Compacted = number;

export type Tombstones = number;

export type After = number;

export type DeadLetter = { offset: Offset; id: EventID; ts: Millis; topic: StoredTopic; group: Group; event_offset: Offset; event_id: EventID; key?: Key; attempts: number; reason: string; redriven?: number; state: "open" | "redriven" | "done" | "requeued"; marks?: RedriveMark[] };

export type RedriveMark = { ts?: Millis; by: string; topic: StoredTopic; group: Group; offset: Offset; dead_letter: Place; dead_letter_id: EventID; redriven?: number; requeued_as?: EventID };

export type Place = { topic: StoredTopic; offset: Head };

export type WholeDeadLetter = { offset: Offset; id: EventID; ts: Millis; topic: StoredTopic; group: Group; event_offset: Offset; event_id: EventID; key?: Key; attempts: number; reason: string; redriven?: number; state: "open" | "redriven" | "done" | "requeued"; marks?: RedriveMark[]; history?: Attempt[]; event: Event };

export type Receipt = { id: EventID; offset?: Offset; deliver_at?: Millis; duplicate?: true };

export type Filter = string | FilterObject;

export type RedriveResult = { topic: StoredTopic; applied: boolean; matched: number; redriven: number; groups?: Record<string, number>; skipped?: { waiting?: number; open?: number; no_group?: number; gone?: number; filter?: number }; samples?: DeadLetter[]; after: number };

export type Removed = { after: Head; first: Offset; compacted?: Compacted; tombstones?: Tombstones };

export type KeyChange = { change: "added" | "changed" | "removed" | "set"; event: Event; before?: Event; before_gone?: true; causes?: Cause[] };

export type Cause = { id: EventID; topic?: StoredTopic; offset?: Offset; hidden?: true; missing?: true };

/** What each route takes and answers. */
export interface Routes {
  "GET /v1/topics": {
    params: Record<never, never>;
    query: { after?: StoredTopic; limit?: number };
    body: undefined;
    answer: { topics: TopicInfo[]; next?: StoredTopic };
  };
  "GET /v1/topics/{topic}": {
    params: { topic: StoredTopic };
    query: Record<never, never>;
    body: undefined;
    answer: TopicInfo;
  };
  "DELETE /v1/topics/{topic}": {
    params: { topic: StoredTopic };
    query: Record<never, never>;
    body: undefined;
    answer: undefined;
  };
  "GET /v1/topics/{topic}/events/{id}": {
    params: { topic: StoredTopic; id: EventID };
    query: Record<never, never>;
    body: undefined;
    answer: Event;
  };
  "GET /v1/events/{id}/trace": {
    params: { id: EventID };
    query: { depth?: number; limit?: number };
    body: undefined;
    answer: Trace;
  };
  "GET /v1/groups": {
    params: Record<never, never>;
    query: { topic?: StoredTopic; group?: Group; after_topic?: StoredTopic; after_group?: Group; limit?: number };
    body: undefined;
    answer: { groups: GroupInfo[]; next?: { after_topic: StoredTopic; after_group: Group } };
  };
  "GET /v1/topics/{topic}/groups/{group}": {
    params: { topic: StoredTopic; group: Group };
    query: Record<never, never>;
    body: undefined;
    answer: GroupInfo;
  };
  "DELETE /v1/topics/{topic}/groups/{group}": {
    params: { topic: StoredTopic; group: Group };
    query: Record<never, never>;
    body: undefined;
    answer: undefined;
  };
  "GET /v1/scheduled": {
    params: Record<never, never>;
    query: { topic?: StoredTopic; after_at?: Millis; after_seq?: number; limit?: number };
    body: undefined;
    answer: { scheduled: Scheduled[]; next?: { after_at: Millis; after_seq: number } };
  };
  "POST /v1/topics/{topic}/groups/{group}/seek": {
    params: { topic: StoredTopic; group: Group };
    query: { apply?: Switch; epoch?: number; from?: From; ts?: Moment; after_id?: EventID; offset?: Head };
    body: Start;
    answer: SeekPlan;
  };
  "POST /v1/topics/{topic}/groups/{group}/pause": {
    params: { topic: StoredTopic; group: Group };
    query: Record<never, never>;
    body: undefined;
    answer: GroupInfo;
  };
  "POST /v1/topics/{topic}/groups/{group}/resume": {
    params: { topic: StoredTopic; group: Group };
    query: Record<never, never>;
    body: undefined;
    answer: GroupInfo;
  };
  "GET /v1/dlq": {
    params: Record<never, never>;
    query: { after?: StoredTopic; limit?: number };
    body: undefined;
    answer: { topics: { topic: StoredTopic; dlq: StoredTopic; count: number; open: number; redriven: number; done: number; requeued: number; groups: { group: Group; open: number; redriven: number; done: number; requeued: number }[]; head: Offset; first_ts?: Millis; head_ts?: Millis }[]; next?: StoredTopic };
  };
  "GET /v1/dlq/{topic}": {
    params: { topic: StoredTopic };
    query: { group?: Group; ids?: string; offsets?: string; from_ts?: Moment; to_ts?: Moment; filter?: string; key?: string; all?: Switch; after?: After; limit?: number };
    body: undefined;
    answer: { topic: StoredTopic; dead_letters: DeadLetter[]; next?: Offset };
  };
  "GET /v1/dlq/{topic}/{offset}": {
    params: { topic: StoredTopic; offset: EventID };
    query: Record<never, never>;
    body: undefined;
    answer: WholeDeadLetter;
  };
  "POST /v1/dlq/{topic}/{offset}/requeue": {
    params: { topic: StoredTopic; offset: EventID };
    query: { marks?: number };
    body: Payload;
    answer: Receipt;
  };
  "POST /v1/dlq/{topic}/redrive": {
    params: { topic: StoredTopic };
    query: { apply?: Switch; group?: Group; ids?: string; offsets?: string; from_ts?: Moment; to_ts?: Moment; filter?: string; key?: string; all?: Switch; after?: After; limit?: number; rate?: number };
    body: { group?: Group; ids?: EventID[]; offsets?: Offset[]; from_ts?: Millis; to_ts?: number; filter?: Filter; all?: boolean; after?: After; limit?: number; rate?: number };
    answer: RedriveResult;
  };
  "GET /replay": {
    params: Record<never, never>;
    query: { topic: StoredTopic; from?: "earliest" | "ts" | "after_id" | "offset"; ts?: Moment; after_id?: EventID; offset?: Head; life?: Offset; limit?: number };
    body: undefined;
    answer: { topic: StoredTopic; count: number; events: Event[]; gap?: Removed; next?: { from: "offset"; offset: Offset; life: Offset } };
  };
  "GET /v1/topics/{topic}/state": {
    params: { topic: StoredTopic };
    query: { prefix?: string; keys?: Key[]; key?: Key; at?: string; page?: string; min_offset?: Offset; wait_ms?: number; limit?: number };
    body: undefined;
    answer: { topic: StoredTopic; life: Offset; at: Head; count: number; events: Event[]; next?: string } | Event;
  };
  "GET /v1/topics/{topic}/state/{key}": {
    params: { topic: StoredTopic; key: Key };
    query: { at?: string; min_offset?: Offset; wait_ms?: number };
    body: undefined;
    answer: Event;
  };
  "GET /v1/topics/{topic}/state-diff": {
    params: { topic: StoredTopic };
    query: { from?: string; to?: string; prefix?: string; page?: string; limit?: number };
    body: undefined;
    answer: { topic: StoredTopic; life: Offset; from: Head; to: Head; count: number; changes: { change: "added" | "changed" | "removed"; key: Key; from?: Event; to?: Event }[]; next?: string };
  };
  "GET /v1/topics/{topic}/state-history": {
    params: { topic: StoredTopic };
    query: { key: Key; before?: Offset; limit?: number };
    body: undefined;
    answer: { topic: StoredTopic; key: Key; life: Offset; horizon: Offset; compacted?: Offset; tombstones?: Offset; count: number; changes: KeyChange[]; next?: Offset };
  };
}

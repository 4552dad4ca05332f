/** Maps the names of topics to the types of their payloads. */
export type TopicMap = object;

/** What a program has that names no topics: all of them, with payloads of any JSON. */
export type AnyTopics = Record<string, unknown>;

/** The names of a map of topics. */
export type TopicName<M extends TopicMap> = keyof M & string;

type Split<S extends string> = S extends `${infer Head}.${infer Rest}` ? [Head, ...Split<Rest>] : [S];

type MatchSegments<P extends string[], T extends string[]> =
  P extends [infer Head, ...infer Rest extends string[]]
    ? Head extends "**"
      ? MatchSegments<Rest, T> extends true
        ? true
        : T extends [string, ...infer After extends string[]] ? MatchSegments<P, After> : false
      : T extends [infer First, ...infer After extends string[]]
        ? Head extends "*" | First ? MatchSegments<Rest, After> : false
        : false
    : T extends [] ? true : false;

/** Whether a pattern matches a topic: `*` is one segment, `**` none, one or more. */
export type Matches<P extends string, K extends string> = MatchSegments<Split<P>, Split<K>>;

/** The topics of a map that a topic or a pattern means. A name that is not known means itself. */
export type TopicsOf<M extends TopicMap, P extends string> =
  string extends TopicName<M> ? P extends `${string}*${string}` ? string : P
    : string extends P ? TopicName<M>
      : P extends TopicName<M> ? P
        : { [K in TopicName<M>]: Matches<P, K> extends true ? K : never }[TopicName<M>];

/** The payload of a topic. */
export type PayloadOf<M extends TopicMap, K extends string> = K extends keyof M ? M[K] : unknown;

// What the types promise, judged by tsc alone: nothing here runs.
import { connect, type AnyTopics, type DeliveryOf, type GroupOptions, type Hub, type Matches, type TopicsOf } from "../src/index.ts";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function is<T extends true>(): T | undefined { return undefined; }

interface Order { id: number; total: number }
interface Topics {
  "orders.placed": Order;
  "orders.paid": { id: number; by: string };
  "orders.eu.placed": Order & { vat: number };
  "process.state": { cpu: number };
}

// Patterns are matched by segments, as the hub matches them.
is<Equal<Matches<"orders.*", "orders.placed">, true>>();
is<Equal<Matches<"orders.*", "orders">, false>>();
is<Equal<Matches<"orders.*", "orders.eu.placed">, false>>();
is<Equal<Matches<"orders.**", "orders">, true>>();
is<Equal<Matches<"orders.**", "orders.eu.placed">, true>>();
is<Equal<Matches<"**.eu", "eu">, true>>();
is<Equal<Matches<"*.**.eu", "eu">, false>>();
is<Equal<Matches<"*.**.eu", "orders.paid.eu">, true>>();
is<Equal<Matches<"**.placed", "orders.eu.placed">, true>>();
is<Equal<TopicsOf<Topics, "orders.*">, "orders.placed" | "orders.paid">>();
is<Equal<TopicsOf<Topics, "**">, keyof Topics>>();
is<Equal<TopicsOf<Topics, "orders.paid">, "orders.paid">>();
is<Equal<TopicsOf<Topics, "elsewhere">, never>>();
is<Equal<TopicsOf<AnyTopics, "a.b">, "a.b">>();
is<Equal<TopicsOf<AnyTopics, "a.*">, string>>();
is<Equal<DeliveryOf<Topics, "orders.paid">["payload"], { id: number; by: string }>>();

export async function typed(hub: Hub<Topics>): Promise<void> {
  await hub.publish("orders.placed", { id: 1, total: 2 }, { key: "k", waitFor: ["billing"] });
  // @ts-expect-error the payload is another topic's
  await hub.publish("orders.placed", { cpu: 1 });
  // @ts-expect-error there is no such topic
  await hub.publish("orders.lost", { id: 1 });
  // @ts-expect-error an option that there is not
  await hub.publish("process.state", { cpu: 1 }, { kye: "k" });
  await hub.publishBatch([{ topic: "orders.placed", payload: { id: 1, total: 2 } }, { topic: "process.state", payload: { cpu: 1 }, key: "k" }]);
  // @ts-expect-error the payload is that of the other event
  await hub.publishBatch([{ topic: "process.state", payload: { id: 1, total: 2 } }]);

  await hub.subscribe("orders.placed", { group: "g" }, (d) => { is<Equal<typeof d.payload, Order>>(); });
  await hub.subscribe("orders.*", { group: "g" }, (d) => {
    is<Equal<typeof d.topic, "orders.placed" | "orders.paid">>();
    is<Equal<typeof d.payload, Order | { id: number; by: string }>>();
    if (d.topic === "orders.paid") is<Equal<typeof d.payload.by, string>>();
  });
  // The other topics of the options come too.
  await hub.subscribe("orders.placed", { group: "g", topics: ["orders.paid"] }, (d) => { is<Equal<typeof d.topic, "orders.placed" | "orders.paid">>(); });
  for await (const d of hub.deliveries("orders.paid", { topics: ["process.*"] })) is<Equal<typeof d.topic, "orders.paid" | "process.state">>();
  const options: GroupOptions = { group: "g" };
  await hub.subscribe("orders.paid", options, (d) => { is<Equal<typeof d.topic, keyof Topics>>(); });
  // @ts-expect-error conflate is for live tails
  await hub.subscribe("orders.placed", { group: "g", conflate: { everyMs: 100 } }, () => undefined);
  // @ts-expect-error a live tail has no attempts
  await hub.subscribe("orders.placed", { maxAttempts: 3 }, () => undefined);
  for await (const d of hub.deliveries("process.**", { from: "latest", conflate: { everyMs: 250 } })) is<Equal<typeof d.payload.cpu, number>>();
  await hub.transform("orders.placed", { group: "g" }, (d) => [{ topic: "orders.paid", payload: { id: d.payload.id, by: "card" } }]);
  // @ts-expect-error the result is of another type
  await hub.transform("orders.placed", { group: "g" }, () => [{ topic: "orders.paid", payload: { id: "x" } }]);
  for await (const e of hub.http.replay("orders.placed")) is<Equal<typeof e.payload, Order>>();
  await hub.http.call("GET /v1/topics");
  // @ts-expect-error the path has a topic
  await hub.http.call("GET /v1/topics/{topic}");
  const page = await hub.http.call("GET /v1/topics/{topic}", { params: { topic: "orders.placed" } });
  is<Equal<typeof page.head, number>>();
  // @ts-expect-error there is no such route
  await hub.http.call("GET /v1/nothing");
  // @ts-expect-error the parameter has another name
  await hub.http.call("GET /v1/topics/{topic}", { params: { name: "orders.placed" } });
}

export async function untyped(): Promise<void> {
  const hub = await connect("ws://127.0.0.1:8090", { token: () => "t" });
  await hub.publish("anything.at.all", [1, "two", null]);
  await hub.subscribe("a.*", { group: "g" }, (d) => { is<Equal<typeof d.payload, unknown>>(); });
  // @ts-expect-error the payload is not known: check it, or name the topics
  await hub.subscribe("a.*", { group: "g" }, (d) => d.payload.x);
}

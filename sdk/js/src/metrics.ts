export type Labels = Record<string, string>;

interface Counter { inc(labels?: Labels, value?: number): void }
interface Gauge { set(value: number): void }
interface Histogram { observe(labels: Labels, value: number): void }

/** The part of the package prom-client that is used. */
export interface PromClientLike {
  Counter: new (o: { name: string; help: string; labelNames: string[] }) => Counter;
  Gauge: new (o: { name: string; help: string }) => Gauge;
  Histogram: new (o: { name: string; help: string; labelNames: string[]; buckets: number[] }) => Histogram;
  register: { contentType: string; metrics(): Promise<string> };
}

/** What `expose` needs of an answer, as those of Express are. */
export interface MetricsResponse { set(name: string, value: string): unknown; end(body: string): unknown }

/** What `expose` needs of a web server, as Express is one. */
export interface MetricsApp { get(path: string, handler: (request: unknown, response: MetricsResponse) => Promise<void>): unknown }

/** Counters, gauges and histograms of prom-client, each made once; without prom-client they do nothing. */
export class Metrics {
  readonly counters = new Map<string, Counter>();
  readonly gauges = new Map<string, Gauge>();
  readonly histos = new Map<string, Histogram>();
  #client: PromClientLike | undefined;

  constructor(client: PromClientLike | undefined) { this.#client = client; }

  counter(name: string, help: string): Counter {
    return made(this.counters, name, this.#client && ((c) => new c.Counter({ name, help, labelNames: ["topic", "group"] })), this.#client, { inc: () => undefined });
  }

  gauge(name: string, help: string): Gauge {
    return made(this.gauges, name, this.#client && ((c) => new c.Gauge({ name, help })), this.#client, { set: () => undefined });
  }

  histo(name: string, help: string, buckets = [5, 10, 25, 50, 100, 250, 500, 1000]): Histogram {
    return made(this.histos, name, this.#client && ((c) => new c.Histogram({ name, help, labelNames: ["topic", "group"], buckets })), this.#client, { observe: () => undefined });
  }

  /** Serves all metrics of the process at a path. */
  expose(app: MetricsApp, path = "/metrics"): void {
    const client = this.#client;
    if (!client) return;
    app.get(path, async (_, response) => {
      response.set("Content-Type", client.register.contentType);
      response.end(await client.register.metrics());
    });
  }
}

function made<T>(all: Map<string, T>, name: string, make: ((c: PromClientLike) => T) | undefined, client: PromClientLike | undefined, nothing: T): T {
  if (!make || !client) return nothing;
  let one = all.get(name);
  if (one === undefined) all.set(name, one = make(client));
  return one;
}

/** The package prom-client, if it is installed. */
export async function loadPromClient(name = "prom-client"): Promise<PromClientLike | undefined> {
  try {
    const loaded = await import(/* @vite-ignore */ /* webpackIgnore: true */ name) as PromClientLike & { default?: PromClientLike };
    return loaded.default ?? loaded;
  } catch {
    return undefined;
  }
}

/** The metrics of this process. */
export const metrics = new Metrics(await loadPromClient());

// Requests to the hub, and who is signed in. The token is in this module's memory, and nowhere else.

import { parse } from "./exact.js";

/** What the hub refused, or that it did not answer (status 0). */
export class Problem extends Error {
  constructor(status, code, detail, more = {}) {
    super(detail);
    Object.assign(this, { status, code, more });
  }
}

let token = "";
/** Called where a request was refused for its token. */
let refused = () => undefined;

export const session = {
  signIn(text) { token = text; },
  onRefused(call) { refused = call; },
  headers: () => (token === "" ? {} : { authorization: `Bearer ${token}` }),
};

/** The path of the HTTP API; each segment is encoded. */
export const path = (...segments) => `/console/api/${segments.map(encodeURIComponent).join("/")}`;

function address(at, query) {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const v of value) q.append(name, v);
    else if (value !== undefined && value !== "" && value !== false) q.append(name, value === true ? "1" : value);
  }
  return q.size === 0 ? at : `${at}?${q}`;
}

/** Sends a request and returns the response, or throws the Problem that it is. */
export async function send(method, at, { query = {}, body, headers = {}, signal } = {}) {
  let response;
  try {
    response = await fetch(address(at, query), { method, body, signal, cache: "no-store", headers: { ...session.headers(), ...headers } });
  } catch (why) {
    if (why.name === "AbortError") throw why;
    throw new Problem(0, "unreachable", "The hub does not answer.");
  }
  if (response.ok) return response;
  let said = {};
  try {
    said = await response.json();
  } catch { /* no problem of the hub: a proxy's */ }
  const problem = new Problem(response.status, said.code ?? "internal", said.detail ?? `${response.status} ${response.statusText}`, said);
  if (response.status === 401) refused(problem);
  throw problem;
}

export const get = async (at, query, signal) => parse(await (await send("GET", at, { query, signal })).text());
export const post = async (at, query, value) => (await send("POST", at, { query, body: value === undefined ? undefined : JSON.stringify(value) })).json();
export const remove = async (at, query) => { await send("DELETE", at, { query }); };

/** What the token allows on a topic, "" for the hub. Remembered for half a minute. */
const known = new Map();
export async function rights(topic = "") {
  const had = known.get(topic);
  if (had && performance.now() - had.at < 30_000) return had.rights;
  const may = await get("/console/rights", { topic });
  if (known.size > 500) known.clear();
  known.set(topic, { at: performance.now(), rights: may });
  return may;
}
export const forgetRights = () => { known.clear(); };

/** The events of a stream as {event, data, id}, until it ends. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const e = { event: "message", data: "", id: undefined };
        for (const line of part.split("\n")) {
          const colon = line.indexOf(":");
          if (colon > 0) e[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
        }
        yield e;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

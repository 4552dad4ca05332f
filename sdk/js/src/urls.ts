import { HubError } from "./errors.ts";

/** One hub: the URL of its WebSocket and of its HTTP API. */
export interface HubUrl { ws: string; http: string }

const schemes = new Map([["ws:", "http:"], ["wss:", "https:"], ["http:", "ws:"], ["https:", "wss:"]]);

/** Reads the URL of a hub, that of its WebSocket or of its HTTP API. */
export function parseUrl(text: string): HubUrl {
  let u: URL;
  try {
    u = new URL(text);
  } catch {
    throw new HubError("bad_request", `"${text}" is no URL: write ws://host:port`);
  }
  const other = schemes.get(u.protocol);
  if (other === undefined) throw new HubError("bad_request", `"${text}" has no scheme of a hub: write ws:// or wss://`);
  // What is too much may be a secret, and is not repeated.
  if (u.username || u.password || u.search || u.hash) {
    throw new HubError("bad_request", `the URL of ${u.host} has more than host, port and path: use the option token`);
  }
  const path = u.pathname.replace(/\/$/, "").replace(/\/ws$/, "");
  return u.protocol.startsWith("ws")
    ? { ws: u.href, http: `${other}//${u.host}${path}` }
    : { ws: `${other}//${u.host}${path}/ws`, http: `${u.protocol}//${u.host}${path}` };
}

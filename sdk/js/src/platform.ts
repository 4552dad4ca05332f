import { HubError } from "./errors.ts";
import type { NodeFrames } from "./node.ts";
import type { WebSocketClass, WebSocketLike } from "./types.ts";

/** The class of the package ws, once it is used. */
let wsClass: WebSocketClass | undefined;
let Frames: typeof NodeFrames | undefined;

/** Has frames of the package ws sent and taken by themselves. The package says so; the file for pages does not. */
export function provideFrames(frames: typeof NodeFrames): void { Frames = frames; }

/** The class of WebSockets: in Node that of the package ws, which costs less than Node's own, if it is there. */
export async function webSocketClass(given: WebSocketClass | undefined): Promise<WebSocketClass> {
  const { WebSocket: own, process: node } = globalThis as { WebSocket?: WebSocketClass; process?: { versions?: { node?: string } } };
  if (given ?? (own && !node?.versions?.node)) return given ?? (own as WebSocketClass);
  const name = "ws"; // a variable: bundlers for pages must not look for it
  try {
    return wsClass ??= ((await import(/* @vite-ignore */ /* webpackIgnore: true */ name)) as { default: WebSocketClass }).default;
  } catch (why) {
    if (own) return own;
    throw new HubError("unreachable", "this platform has no WebSocket: install the package ws, or use Node 22", { cause: why });
  }
}

/** Takes frames of the package ws by themselves, where that is what the WebSocket is of. */
export function framesOf(ws: WebSocketLike, message: (data: unknown) => void): NodeFrames | undefined {
  return wsClass && ws.constructor === wsClass ? Frames?.of(ws, message) : undefined;
}

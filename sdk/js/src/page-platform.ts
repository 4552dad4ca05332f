import type { NodeFrames } from "./node.ts";
import type { WebSocketClass } from "./types.ts";

// What platform.ts is in the one file for pages: those have WebSockets of their own. Node before 22 has none.

/** The class of WebSockets. */
export async function webSocketClass(given: WebSocketClass | undefined): Promise<WebSocketClass> {
  const name = "ws"; // a variable: bundlers for pages must not look for it
  return given ?? (globalThis as { WebSocket?: WebSocketClass }).WebSocket ?? ((await import(/* @vite-ignore */ /* webpackIgnore: true */ name)) as { default: WebSocketClass }).default;
}

/** Nothing is taken by itself. */
export function framesOf(): NodeFrames | undefined { return undefined; }

import type { WebSocketLike } from "./types.ts";

/** What is used of Node. */
interface NodeBuffer extends Uint8Array {
  latin1Write(text: string, at: number, bytes: number): number;
  utf8Write(text: string, at: number, bytes: number): number;
  writeUInt16BE(value: number, at: number): number;
  writeUInt32BE(value: number, at: number): number;
}
declare const Buffer: { allocUnsafeSlow(bytes: number): NodeBuffer; byteLength(text: string): number };
declare const setImmediate: (run: () => void) => void;

/** The part of a WebSocket of the package ws that is used here, and no other class has. */
interface NodeWebSocket extends WebSocketLike {
  _socket: { write(frames: Uint8Array): unknown; destroyed: boolean };
  extensions: string;
  readyState: number;
  on(event: "message", then: (data: { toString(): string }, isBinary: boolean) => void): unknown;
}

const masks = new Uint8Array(4096);
let used = masks.length;
const rotated = new Uint8Array(4), word = new Int32Array(rotated.buffer);

/**
 * The frames of a WebSocket of the package ws. That makes two writes for each frame, and an object for each message;
 * here what is sent in one turn is one write, and a message is its text.
 */
export class NodeFrames {
  #ws: NodeWebSocket;
  #texts: string[] = [];
  #ended = false;

  private constructor(ws: NodeWebSocket, message: (text: unknown) => void) {
    this.#ws = ws;
    ws.on("message", (data, isBinary) => { if (!this.#ended) message(isBinary ? undefined : data.toString()); });
  }

  /** Takes an open WebSocket over, if its frames are not compressed. */
  static of(ws: WebSocketLike, message: (text: unknown) => void): NodeFrames | undefined {
    const node = ws as NodeWebSocket;
    if (node.extensions !== "" || typeof node._socket?.write !== "function") return undefined;
    ws.onmessage = null;
    return new NodeFrames(node, message);
  }

  send(text: string): void {
    if (this.#texts.push(text) === 1) setImmediate(() => { this.#flush(); });
  }

  /** Writes what has gathered, and takes nothing more. */
  close(): void {
    this.#ended = true;
    this.#flush();
  }

  #flush(): void {
    const texts = this.#texts;
    if (texts.length === 0) return;
    this.#texts = [];
    const { _socket: tcp, readyState } = this.#ws;
    if (readyState !== 1 || tcp.destroyed) return;
    const sizes = texts.map((text) => Buffer.byteLength(text));
    const b = Buffer.allocUnsafeSlow(sizes.reduce((sum, n) => sum + n + (n < 126 ? 6 : n < 65_536 ? 8 : 14), 0));
    const words = new Int32Array(b.buffer, 0, b.length >> 2);
    let at = 0;
    texts.forEach((text, i) => { at = frame(b, words, at, text, sizes[i] ?? 0); });
    tcp.write(b);
  }
}

/** Writes one masked text frame (RFC 6455, 5.2) and returns its end. */
function frame(b: NodeBuffer, words: Int32Array, start: number, text: string, size: number): number {
  let at = start;
  b[at++] = 0x81;
  b[at++] = 0x80 | (size < 126 ? size : size < 65_536 ? 126 : 127);
  if (size >= 65_536) {
    b.writeUInt32BE(0, at);
    b.writeUInt32BE(size, at += 4);
    at += 4;
  } else if (size >= 126) {
    b.writeUInt16BE(size, at);
    at += 2;
  }
  if (used === masks.length) {
    crypto.getRandomValues(masks);
    used = 0;
  }
  const mask = masks.subarray(used, used += 4);
  b.set(mask, at);
  at += 4;
  if (size === text.length) b.latin1Write(text, at, size); // it is ASCII
  else b.utf8Write(text, at, size);
  apply(b, words, mask, at, at + size);
  return at + size;
}

/** Applies a mask: whole words where they are aligned, single bytes before and after. */
function apply(b: Uint8Array, words: Int32Array, mask: Uint8Array, from: number, to: number): void {
  const first = Math.min(from + 3 & ~3, to), last = Math.max(first, to & ~3);
  for (let i = from; i < first; i++) b[i] = (b[i] ?? 0) ^ (mask[i - from & 3] ?? 0);
  for (let j = 0; j < 4; j++) rotated[j] = mask[first - from + j & 3] ?? 0;
  const m = word[0] ?? 0;
  for (let i = first >> 2; i < last >> 2; i++) words[i] = (words[i] ?? 0) ^ m;
  for (let i = last; i < to; i++) b[i] = (b[i] ?? 0) ^ (mask[i - from & 3] ?? 0);
}

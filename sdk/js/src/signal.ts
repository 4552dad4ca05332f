/** What to reject with when a signal has aborted. */
export function abortReason(signal: AbortSignal | undefined): Error {
  const reason: unknown = signal?.reason;
  return reason instanceof Error ? reason : new DOMException(String(reason ?? "aborted"), "AbortError");
}

/** Calls `then` when the signal aborts, at once if it has; the result takes that back. */
export function onAbort(signal: AbortSignal | undefined, then: () => void): () => void {
  if (!signal) return () => undefined;
  if (signal.aborted) {
    then();
    return () => undefined;
  }
  signal.addEventListener("abort", then, { once: true });
  return () => { signal.removeEventListener("abort", then); };
}

export interface Deferred<T> {
  promise: Promise<T>;
  resolve(value: T): void;
  reject(why: unknown): void;
}

export function deferred<T>(): Deferred<T> {
  let resolve!: (value: T) => void, reject!: (why: unknown) => void;
  const promise = new Promise<T>((yes, no) => { resolve = yes; reject = no; });
  return { promise, resolve, reject };
}

/** A promise that is over when `promise` is, or rejects when the signal aborts before. */
export function orAbort<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  const d = deferred<T>();
  const off = onAbort(signal, () => { d.reject(abortReason(signal)); });
  promise.then(d.resolve, d.reject).finally(off).catch(() => undefined);
  return d.promise;
}

let last = 0, lag = 0;

/** The clock in epoch ms, to measure by: where it is set back, it goes on from where it was. */
export function now(): number {
  const t = Date.now() + lag;
  if (t < last) lag += last - t;
  return last = Math.max(t, last);
}

// Text and lines of figures.

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const count = (n) => whole.format(n);
export const time = (ms) => clock.format(ms);
export const percent = (n) => (n >= 1000 ? whole.format(Math.round(n)) : n.toFixed(1));

/** MiB in a unit that fits. */
export function memory(mib) {
  if (mib >= 10_240) return `${(mib / 1024).toFixed(1)} GiB`;
  if (mib >= 1000) return `${(mib / 1024).toFixed(2)} GiB`;
  return `${mib.toFixed(1)} MiB`;
}

/** A duration in one unit. */
export function age(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

/** The range that a line is drawn in: CPU from 0, memory around what it was, so that a change can be seen. */
export function rangeOf(values, fromZero) {
  let low = Infinity, high = -Infinity;
  for (const v of values) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (fromZero) return [0, Math.max(high * 1.08, 1)];
  const room = Math.max((high - low) * 0.15, high * 0.01, 0.1);
  return [Math.max(0, low - room), high + room];
}

/**
 * The line through values as the `d` of a path, and the area below it. `at` gives x, from 0 to 1, by index.
 * @returns {[string, string]}
 */
export function pathOf(values, [low, high], width, height, at) {
  if (values.length === 0) return ["", ""];
  const y = (v) => (height - 1 - (v - low) / (high - low) * (height - 2)).toFixed(1);
  let line = "";
  for (let i = 0; i < values.length; i++) line += `${i === 0 ? "M" : "L"}${(at(i) * width).toFixed(1)} ${y(values[i])}`;
  if (values.length === 1) line += `h${(width / 60).toFixed(1)}`; // one sample would be no line at all
  const first = (at(0) * width).toFixed(1), last = (at(values.length - 1) * width).toFixed(1);
  return [line, values.length === 1 ? "" : `${line}L${last} ${height}L${first} ${height}Z`];
}

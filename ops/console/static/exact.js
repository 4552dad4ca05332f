// JSON with its numbers as they are written: JavaScript has no others than doubles.

/** What may be in a number that a double is not written like. To look at each takes long in large texts. */
const inexact = /[\d.]{16}|\d[eE]|\.\d*0(?!\d)|-0(?![.\d])|0\.000000/;

/** A number as it is written, where a double would be written otherwise. JSON.stringify writes it as it was. */
class Written {
  constructor(text) { this.text = text; }
  toJSON() { return JSON.rawJSON(this.text); }
}

/** The text of such a number; undefined of all else. */
export const written = (value) => (value instanceof Written ? value.text : undefined);

/** Reads JSON, with its numbers as they are written. */
export function parse(text) {
  if (!JSON.rawJSON || !inexact.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) => (typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? new Written(context.source) : value));
}

/** How long a text may be that people edit: a larger one has no spaces, which would be most of it. */
const spacious = 200_000;

/** A value as people edit it. */
export function editable(value) {
  const text = JSON.stringify(value, null, 2);
  return text.length > spacious ? JSON.stringify(value) : text;
}

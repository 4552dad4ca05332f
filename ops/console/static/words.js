// Figures and sentences as people read them. All of it is text; nothing becomes markup.

import { hubNow } from "./clock.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (n) => (n === undefined || n === null ? "…" : whole.format(n));
export const rate = (n) => (n === undefined || n === null ? "…" : n > 0 && n < 10 ? tenths.format(n) : whole.format(n));
/** One thing, or many: plural(1, "event") is "1 event". */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function bytes(n) {
  if (n === undefined || n === null) return "…";
  let i = 0;
  for (; n >= 1024 && i < 5; i++) n /= 1024;
  return `${i === 0 ? whole.format(n) : tenths.format(n)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][i]}`;
}

/** A time span in its two largest units. */
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => s >= size);
  if (first < 0) return "less than 1 s";
  const [unit, size] = units[first];
  const next = units[first + 1];
  const rest = next ? Math.floor((s % size) / next[1]) : 0;
  return `${Math.floor(s / size)} ${unit}${rest > 0 ? ` ${rest} ${next[0]}` : ""}`;
}

export const ago = (ts, now = hubNow()) => (!ts ? "never" : now - ts < 1_000 ? "just now" : `${span(now - ts)} ago`);

const clock = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" });
export const time = (ts) => (ts ? `${clock.format(ts)}.${String(ts % 1000).padStart(3, "0")}` : "");

/** A text of others inside a sentence: one that turns the direction of writing turns nothing of the sentence. */
const apart = (text) => (/[\u0590-\u08ff\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufeff]/.test(text) ? `\u2068${text}\u2069` : text);

/** A text between quotes, for sentences. */
const quote = (text) => `“${apart(text)}”`;

const who = (peer) => (peer ? apart(peer.client || peer.name || peer.transport || "a member") : "a member");

/** How an event in flight is, as the end of a sentence. */
export function doing(e, now) {
  switch (e.state) {
    case "leased": return `has been with ${who(e.member)} for ${span(now - e.since_ts)}`;
    case "waiting": return e.due_ts > now ? `waits for its next attempt, in ${span(e.due_ts - now)}` : "waits for its next attempt, which is due";
    case "held": return "waits for an earlier event of its key";
    case "dead_lettering": return "becomes a dead letter";
    case "ack_and_publish": return "is acked, with what is published for it";
    case "done": return "is done";
    case "ahead": return "was not read yet";
    default: return `is ${e.state}`;
  }
}

function lastFailure(e) {
  const last = e.history?.at(-1);
  if (!last) return "";
  const how = { nacked: "was nacked", expired: "ran out of time", disconnected: "lost its connection" }[last.why] ?? last.why;
  return ` Attempt ${last.attempt} ${how}${last.reason ? `: ${quote(last.reason)}` : ""}.`;
}

const waits = (w, now) => `${plural(w.lag, "event")} ${w.lag === 1 ? "is" : "are"} not done${w.oldest_ts ? `, the oldest for ${span(now - w.oldest_ts)}` : ""}.`;

/** What is in the way of a group, in a sentence; "" where nothing is. */
export function blocked(b, now = hubNow()) {
  if (!b) return "";
  const event = b.offset ? `event ${b.offset}` : "an event";
  const state = b.state ? doing({ ...b, due_ts: 0 }, now) : "is not done";
  switch (b.kind) {
    case "paused": return "The group is paused: nothing is delivered until somebody resumes it.";
    case "filter": return `The hub does not accept the filter of the group any more, so nobody can subscribe: ${quote(b.reason ?? "")}.`;
    case "no_members": return "Nobody is subscribed to the group.";
    case "members_full": return "No member takes more: each holds as many events as its max_in_flight, or its connection, allows.";
    case "members_paused": return "All members have paused by themselves.";
    case "window": return `The group has read as far above its cursor as it may. The cursor stands at ${event}, which ${state}.`;
    case "key": return `Events of the key ${quote(b.key)} are held until ${event} of that key is done. It ${state}.`;
    default: return `Deliveries wait: ${b.kind}.`;
  }
}

const kinds = {
  paused: (w, now) => [`${blocked(w.blocked_by, now)} ${waits(w, now)}`, "Resume the group."],
  filter: (w, now) => [`${blocked(w.blocked_by, now)} ${waits(w, now)}`, "Delete the group, and subscribe with another filter."],
  no_members: (w, now) => [`${blocked(w.blocked_by, now)} ${waits(w, now)}`, "Start a consumer of the group. Delete the group if nobody needs it any more."],
  members_paused: (w, now) => [`${blocked(w.blocked_by, now)} ${waits(w, now)}`, "Look at why they paused: they have to resume."],
  members_full: (w, now) => [`${blocked(w.blocked_by, now)} ${w.event ? `Event ${w.event.offset} ${doing(w.event, now)}. ` : ""}${waits(w, now)}`,
    "Look at what that member does. Closing its connection gives its events to others; more members help if all are slow."],
  window: (w, now) => [`${blocked(w.blocked_by, now)} ${waits(w, now)}`, "Look at that event, and at the member that has it."],
  key: (w, now) => [`${blocked(w.blocked_by, now)} ${waits(w, now)}`, "Look at that event: the others of its key come when it is acked or a dead letter."],
  poison: (w, now) => [`Event ${w.event.offset} fails again and again: ${plural(w.event.attempt, "attempt")} of ${w.max_attempts}.${lastFailure(w.event)} It ${doing(w.event, now)}. ${waits(w, now)}`,
    `It becomes a dead letter after ${plural(w.max_attempts, "attempt")}. Mend the consumer, or the event.`],
  retry: (w, now) => [`Event ${w.event.offset} ${doing(w.event, now)}.${lastFailure(w.event)} ${waits(w, now)}`, "The group goes on by itself when the attempt succeeds."],
  slow: (w, now) => [`Event ${w.event.offset} ${doing(w.event, now)}. ${waits(w, now)}`, "Look at what that member does."],
  dead_letters: (w) => [`${plural(w.letters, "dead letter")} ${w.letters === 1 ? "waits" : "wait"} for somebody to redrive or requeue ${w.letters === 1 ? "it" : "them"}.`, "Look at the reasons; redrive when they are gone."],
  not_ready: (w) => [`The check ${quote(w.name)} of /readyz fails: ${w.text}`, "The log of the hub has the cause."],
  not_measured: (w) => [`The engine can not be measured: ${w.text}`, "The log of the hub has the cause."],
  commit_stalled: (w) => [`The store has ended no commit for ${span(w.seconds * 1000)}: the disk is slow or does not answer. Publishes wait.`, "Look at the disk of the store."],
  disk_full: (w) => [`Publishes are refused: ${bytes(w.bytes)} of the disk are free, ${bytes(w.needed_bytes)} have to be.`, "Make room on the disk, or let topics keep less. Reads and acks go on."],
  disk_soon: (w) => [`The disk is full in ${span(w.seconds * 1000)}, if it goes on like this: ${bytes(w.bytes)} are free.`, "Make room on the disk, or let topics keep less."],
  journal_silent: (w) => [`The journal has not answered for ${span(w.seconds * 1000)}.`, "Look at the servers of the journal and the network to them. The hubs go on by themselves."],
  journal_full: (w) => [`The journal is full, and has taken nothing for ${span(w.seconds * 1000)}.`, "Start the member that is away, or release it; or raise the limit of the journal. The hubs go on by themselves."],
  standby_behind: (w) => [`This hub does not have all entries of the journal for ${span(w.seconds * 1000)}.`, "Compare its disk and its network with those of the hub that leads."],
  no_standby: (w) => [`${w.name} is the only hub of its journal: nobody takes over.`, "Start another hub with the same journal."],
  setting_stale: (w) => [`What ${w.name} names can not be read again; what it had before still counts.`, "The log of the hub has the reason."],
  certificate: (w) => [`The certificate of ${w.name} ends in ${span(w.seconds * 1000)}.`, "Renew it: the hub takes the new files by itself."],
  clock_ahead: (w) => [`The clock of the machine is ${span(w.seconds * 1000)} ahead of the time that retention goes by.`, "Look at who has set the clock."],
};

const titles = {
  paused: "is paused", filter: "has a filter that is not accepted", no_members: "has no members", members_paused: "has members that all paused", members_full: "has full members", window: "is at the end of its window",
  key: "is blocked on a key", poison: "has an event that keeps failing", retry: "waits for a retry", slow: "has an event that takes long", dead_letters: "has dead letters",
  not_ready: "The hub is not ready", not_measured: "The hub can not be measured", commit_stalled: "The store stands still", disk_full: "The disk is full", disk_soon: "The disk fills up",
  journal_silent: "The journal is silent", journal_full: "The journal is full", standby_behind: "This standby is behind", no_standby: "There is no standby", setting_stale: "A setting is stale", certificate: "A certificate ends", clock_ahead: "The clock is ahead",
};

/** What is wrong, as {subject, title, text, help, link}. */
export function explain(w, now = hubNow()) {
  const [text, help] = kinds[w.kind]?.(w, now) ?? [w.text ?? w.kind, ""];
  const link = w.kind === "dead_letters" ? to("dlq", w.topic, w.group) : w.group ? to("groups", w.topic, w.group) : undefined;
  return { subject: w.group ? `${w.group} in ${w.topic}` : "", title: titles[w.kind] ?? w.kind, text, help, link };
}

/** The beginning of a payload, on one line. */
export function preview(value, most = 160) {
  const text = JSON.stringify(value) ?? "";
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** The address of a page of the console. */
export const to = (...segments) => `#/${segments.map(encodeURIComponent).join("/")}`;

/** A word for a shell, quoted where it has to be. */
const word = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);
/** A text that is longer is no argument that people copy: a command reads it from its standard input instead. */
export const longArgument = 2000;

/** The command that does the same: its name, what it is about, and flags. What begins with a dash would be taken for a flag. */
export function command(name, about, flags = []) {
  const all = about.some((a) => /^-./.test(a)) ? [...flags, "--", ...about] : [...about, ...flags];
  return ["eventhub", name, ...all.map((a) => word(String(a)))].join(" ");
}

/** The flags of eventhub topic set, by where the setting is in the JSON of settings. */
const flags = [
  ["retention.age", "--retention-age"], ["retention.bytes", "--retention-bytes"], ["retention.count", "--retention-count"],
  ["compaction", "--compact"], ["compaction.min_age", "--compact-min-age"], ["compaction.hold", "--compact-hold"], ["compaction.grace", "--compact-grace"],
  ["key_required", "--key-required"], ["state", "--state"], ["group_idle_expiry", "--group-idle-expiry"],
  ["snapshot", "--snapshot"], ["snapshot.every", "--snapshot-every"], ["snapshot.changes", "--snapshot-changes"], ["snapshot.batch_keys", "--snapshot-key"], ["snapshot.key_source", "--snapshot-key-source"],
];

/** The command that stores settings, of which version is the one that is stored now. */
export function settingsCommand(topic, settings, version) {
  const words = [];
  for (const [at, flag] of flags) {
    const value = at.split(".").reduce((v, name) => v?.[name], settings);
    if (value === undefined || value === false || value === 0 || value === "") continue;
    if (value === true || value !== null && typeof value === "object" && !Array.isArray(value)) words.push(flag);
    else for (const one of [value].flat()) words.push(flag, one);
  }
  return command("topic set", [topic], [...(words.length === 0 ? ["--keep-everything"] : words), "--if-version", version]);
}

// Times in the reader's zone, with UTC for the hover; and the range that a view shows, which is in the URL.

import { location$, setQuery, useLocation } from "../router.js";
import { Store, useStore } from "../store.js";

export const now = () => Math.floor(Date.now() / 1000);

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const LATEST = 9_999_999_999;

export const RANGES = {
  "1h": { seconds: HOUR, label: "Last hour", bucket: "1m" },
  "6h": { seconds: 6 * HOUR, label: "Last 6 hours", bucket: "1m" },
  "24h": { seconds: DAY, label: "Last 24 hours", bucket: "1h" },
  "7d": { seconds: 7 * DAY, label: "Last 7 days", bucket: "1h" },
  "30d": { seconds: 30 * DAY, label: "Last 30 days", bucket: "1d" },
  "90d": { seconds: 90 * DAY, label: "Last 90 days", bucket: "1d" },
};
export const MAX_RANGE_DAYS = 366;
export const DEFAULT_RANGE = "24h";
export const BUCKET_S = { "1m": MINUTE, "1h": HOUR, "1d": DAY };
const MAX_RANKED_BUCKETS = 60;

/** Return whether a range is too long for the API, which ranks at most MAX_RANGE_DAYS. */
export const isTooLong = (from, till) => till - from > MAX_RANGE_DAYS * DAY;

/** The time at which relative ranges end. It moves on while live updates run. */
export const clock$ = new Store(now());

export function tick() {
  clock$.set(now());
}

/**
 * Return the range of the view, {start, end, bucket, name, label}, in Unix seconds; end is excluded, and lies on a
 * bucket's border. bucket: the width ("1m", "1h", "1d") with which a chart has 60 to 400 points.
 */
export function useRange() {
  const { query } = useLocation();
  const at = useStore(clock$);
  return rangeOf(query, at);
}

export function rangeOf(query, at = now()) {
  const from = Number(query.get("from"));
  const till = Number(query.get("to"));
  if (
    Number.isInteger(from) &&
    Number.isInteger(till) &&
    from > 0 &&
    till > from &&
    till <= LATEST &&
    !isTooLong(from, till)
  ) {
    const bucket = bucketFor(till - from);
    return {
      ...onBorders(from, till, borderOf(till - from, bucket)),
      bucket,
      name: "",
      label: `${short(from)} – ${short(till)}`,
    };
  }
  const name = query.get("range") in RANGES ? query.get("range") : DEFAULT_RANGE;
  const { seconds, label, bucket } = RANGES[name];
  const border = borderOf(seconds, bucket);
  const { start } = onBorders(at - seconds + border, at + 1, border);
  return { start, end: onBorders(start, at + 1, BUCKET_S[bucket]).end, bucket, name, label };
}

/**
 * Return the multiple of seconds at which a range begins, so that charts and GET /traffic/top, whose buckets are fewer
 * and wider, cover the same time.
 */
function borderOf(seconds, bucket) {
  if (seconds <= MAX_RANKED_BUCKETS * BUCKET_S[bucket]) return BUCKET_S[bucket];
  return bucket === "1m" ? HOUR : DAY;
}

function bucketFor(seconds) {
  return seconds <= 6 * HOUR ? "1m" : seconds <= 14 * DAY ? "1h" : "1d";
}

function onBorders(start, end, size) {
  const first = Math.floor(start / size) * size;
  const last = Math.ceil(end / size) * size;
  return { start: isTooLong(first, last) ? first + size : first, end: last };
}

/** Set the range of the view: by name, or by its start and end. */
export function setRange({ name = null, from = null, to = null }) {
  setQuery(
    { range: name === DEFAULT_RANGE ? null : name, from: from && Math.floor(from), to: to && Math.ceil(to) },
    { push: true },
  );
}

/** Return the query of links that lead to the same range. */
export function rangeQuery() {
  const kept = new URLSearchParams();
  for (const name of ["range", "from", "to"]) {
    if (location$.value.query.has(name)) kept.set(name, location$.value.query.get(name));
  }
  return kept.toString();
}

const formats = {
  short: new Intl.DateTimeFormat(undefined, {
    day: "numeric",
    month: "short",
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
  }),
  withYear: new Intl.DateTimeFormat(undefined, {
    day: "numeric",
    month: "short",
    year: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
  }),
  long: new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" }),
  day: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" }),
  utcDay: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" }),
};

/** Return a time such as "22 Nov, 13:40", with the year if it is another one. */
export function short(at) {
  const date = new Date(at * 1000);
  return (date.getFullYear() === new Date().getFullYear() ? formats.short : formats.withYear).format(date);
}

export function long(at) {
  return formats.long.format(new Date(at * 1000));
}

export function day(at) {
  return formats.day.format(new Date(at * 1000));
}

/** Return the day of a time in UTC, such as "22 Nov". */
export function utcDay(at) {
  return formats.utcDay.format(new Date(at * 1000));
}

export function utc(at) {
  return `${new Date(at * 1000)
    .toISOString()
    .replace("T", " ")
    .replace(/\.\d+Z/, "")} UTC`;
}

/** Return a time relative to now: "3 min ago", "in 2 h". */
export function ago(at, from = now()) {
  const seconds = Math.abs(from - at);
  const text =
    seconds < 5
      ? ""
      : seconds < MINUTE
        ? `${Math.floor(seconds)} s`
        : seconds < HOUR
          ? `${Math.floor(seconds / MINUTE)} min`
          : seconds < 2 * DAY
            ? `${Math.floor(seconds / HOUR)} h`
            : `${Math.floor(seconds / DAY)} d`;
  return text === "" ? "now" : at <= from ? `${text} ago` : `in ${text}`;
}

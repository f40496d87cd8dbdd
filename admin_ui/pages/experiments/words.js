// What experiments are made of, in words that several views share: states, metrics with their units, where units come
// from.

import * as format from "../../lib/format/format.js";

/** By name: title, how its values are shown, and what one value is of. */
const BUILT_IN = {
  cost_nanos: ["Cost", "money", "a unit"],
  prompt_tokens: ["Prompt tokens", "tokens", "a unit"],
  completion_tokens: ["Completion tokens", "tokens", "a request"],
  ttft_ms: ["Time to first token", "ms", "a request"],
  time_per_token_ms: ["Time per token", "ms", "a request"],
  queue_ms: ["Time in the queue", "ms", "a request"],
  engine_ms: ["Time on the engine", "ms", "a request"],
  error_rate: ["Units with an error", "percent", ""],
  refusal_rate: ["Units with a refusal", "percent", ""],
  length_rate: ["Answers cut off at their most tokens", "percent", ""],
  answer_rate: ["Units that gave feedback", "percent", ""],
};
const MORE_IS_BETTER = new Set(["answer_rate"]);
const WITH_QUANTILES = ["ttft_ms", "time_per_token_ms", "queue_ms", "engine_ms"];
const QUANTILES = ["p50", "p90", "p95", "p99"];

/** Of those that an experiment may have without feedback: [name, title]. */
export const BUILT_IN_METRICS = [
  ...Object.entries(BUILT_IN).map(([name, [title]]) => [name, title]),
  ...WITH_QUANTILES.flatMap((name) =>
    QUANTILES.map((quantile) => [`${name}.${quantile}`, `${BUILT_IN[name][0]}, ${quantile}`]),
  ),
];

/** Units with any are counted and compared exactly: no margin is tolerated. */
export const isError = (metric) => metric === "error_rate" || metric === "refusal_rate";

export const isQuantile = (metric) => metric.includes(".") && metric.split(".")[0] in BUILT_IN;

const NOT_IN_LEDGER = new Set(["refusal_rate", "answer_rate"]);

/** Whether past requests, or past feedback, tell how it varies. */
export const hasPast = (metric) => !NOT_IN_LEDGER.has(metric);

export const isBuiltIn = (metric) => metric.split(".")[0] in BUILT_IN;

/** Title of a metric; the project's own have the name that they were given. */
export function metricTitle(metric) {
  const [name, quantile] = metric.split(".");
  const [title] = BUILT_IN[name] ?? [metric];
  return quantile && name in BUILT_IN ? `${title}, ${quantile}` : title;
}

/** "a unit", "a request", or "" where a value is a share of units. own: the project's own metrics by name. */
export function metricOf(metric, own = {}) {
  const [, , of] = BUILT_IN[metric.split(".")[0]] ?? [];
  if (of !== undefined) return isQuantile(metric) ? "the unit's first request" : of;
  return own[metric]?.kind === "ratio" ? "a vote" : "a unit";
}

/** Which way is better, or undefined while the project's own metric is not known. */
export function goalOf(metric, own = {}) {
  const [name] = metric.split(".");
  if (name in BUILT_IN) return MORE_IS_BETTER.has(name) ? "increase" : "decrease";
  return own[metric]?.goal;
}

/** A value of a metric as text. */
export function shownValue(metric, value, currency, own = {}) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const [, unit] = BUILT_IN[metric.split(".")[0]] ?? [];
  if (unit === "money") return format.money(value, currency);
  if (unit === "ms") return format.ms(value);
  if (unit === "percent" || (own[metric]?.type === "boolean" && own[metric].kind === "ratio"))
    return format.percent(value);
  if (unit === "tokens") return format.tokens(value);
  return format.count(value);
}

/**
 * A difference of two values, with its sign and unit: one of percentages is in points, since a percentage would be a
 * part of them.
 */
export function shownDifference(metric, value, currency, own = {}) {
  const sign = value > 0 ? "+" : value < 0 ? "−" : "";
  const shown = shownValue(metric, value === null ? null : Math.abs(value), currency, own);
  const unit = shown.endsWith(" %") ? " points" : unitOf(metric) === "tokens" ? " tokens" : "";
  return sign + shown.replace(/ %$/, "") + unit;
}

/** "+2.94 to +16.4 points": a unit that both have is said once. */
export const spanShown = (low, high) => `${high.endsWith(" points") ? low.replace(/ points$/, "") : low} to ${high}`;

const unitOf = (metric) => BUILT_IN[metric.split(".")[0]]?.[1];

/** [label, value] of a metric whose votes are labels, the highest value first. */
export const labelsOf = ({ labels }) => Object.entries(labels ?? {}).sort(([, a], [, b]) => b - a);

const STATES = {
  draft: "Nothing is served under its name yet.",
  running: "Units are given their arms.",
  paused: "Everybody gets the control; units that had an arm get it again once it goes on.",
  stopped: "Everybody gets the control for good; outcomes still come until units' windows end.",
  decided: "Its model string became an alias of what the chosen arm serves.",
  archived: "It is only kept.",
};

export const stateInWords = (state) => STATES[state] ?? "";

export const isOpen = ({ state }) => ["running", "paused"].includes(state);

/** The model string that an arm serves: that of the start, once it has started. */
export const servedBy = ({ serves, target }) => serves?.model ?? target.model;

/** While it runs or still gathers outcomes. */
export const hasResults = ({ state }) => state !== "draft";

const SOURCES = {
  safety_identifier: [
    "safety_identifier",
    "the field “safety_identifier” of a request: the end user, by a name of your own",
  ],
  user: ["user", "the field “user” of a request, which older clients send for the end user"],
  prompt_cache_key: ["prompt_cache_key", "the field “prompt_cache_key” of a request: mostly a conversation"],
  "x-lorikeet-unit": [
    "header x-lorikeet-unit",
    "the header “x-lorikeet-unit” of a request, whatever you want to keep together",
  ],
  api_key: ["API key", "the API key: all requests of one key get the same arm"],
};

/** [source, title] of those that can be picked from a list. */
export const UNIT_SOURCES = Object.entries(SOURCES).map(([source, [title]]) => [source, title]);

export function sourceInWords(source) {
  return SOURCES[source]?.[1] ?? `“${source.replace("metadata.", "")}” in a request's metadata`;
}

/** How long outcomes of a unit count. */
export const windowInWords = ({ outcome_window_seconds: seconds }) => format.duration(seconds);

/** When there is anything to read: the window goes by units, and not by the start. */
export const firstResults = (analysis) =>
  `The first results come ${windowInWords(analysis)} after the first unit's first request; errors and ` +
  "refusals count at once.";

/** The declared days: "7 whole days since the start". */
export const daysDeclared = (days) => `${format.count(days)} whole ${days === 1 ? "day" : "days"} since the start`;

/** How long it has run: "in 3 of 7 whole days since the start" while the declared days are not over. */
export function spanInWords({ days, analysis: { min_days: least } }) {
  if (days < least) return `in ${days} of ${daysDeclared(least)}`;
  return days ? `in ${format.plural(days, "day")}` : "on the first day";
}

/** What becomes of requests beside their replies. shadow: {name, target, share} with its share in 10,000 parts. */
export const shadowInWords = ({ name, target, share }) =>
  `Copies of ${coverageShown(share)} of the requests go to “${name}” (${targetInWords(target)}) once ` +
  "their replies are over. No end user sees anything of it, and it is not compared with the arms; each " +
  "copy is billed to this tenant, in the service tier “shadow”.";

/** A sentence of the API with percentages and signs as the dashboard writes them: "−5.4 %" for "-5.4%". */
export const percentsSpaced = (sentence) => sentence.replace(/(\d)%/g, "$1 %").replace(/(^|[\s(])-(?=\d)/g, "$1−");

/** "12.35 %" of 1,235 of 10,000 parts: all of their digits. */
export const coverageShown = (parts) => `${format.exactly(parts / 100)} %`;

/** The most characters of a unit's name. */
export const MAX_UNIT_CHARS = 512;

const SHOWN_CHARS = 160;

const settingShown = (name, value) => {
  if (name !== "system_prompt")
    return `${name.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : value}`;
  return `the system prompt “${value.length > SHOWN_CHARS ? `${value.slice(0, SHOWN_CHARS).trimEnd()}…` : value}”`;
};

/** What an arm sets beside its model, such as "temperature 0.2, whatever a request gives"; "" where it sets nothing. */
export function settingsInWords({ defaults, mode }) {
  const set = Object.entries(defaults ?? {}).filter(([, value]) => value !== null && value !== undefined);
  if (set.length === 0) return "";
  return (
    `${set.map(([name, value]) => settingShown(name, value)).join(", ")}, ` +
    `${mode === "replace" ? "whatever a request gives" : "where a request leaves it open"}`
  );
}

/** A model string with what an arm sets beside it. target: {model, defaults, mode}. */
export const targetInWords = (target) => [target.model, settingsInWords(target)].filter(Boolean).join(" with ");

/** The part of units that each arm gets, by its place. */
export function sharesOf(arms) {
  const total = arms.reduce((sum, { weight }) => sum + weight, 0);
  return arms.map(({ weight }) => (total ? weight / total : 0));
}

/** How parts of arms are read. */
export function partsInWords(parts) {
  const sum = Math.round(parts.reduce((total, part) => total + part, 0) * 100) / 100;
  return sum === 100
    ? "The parts add up to 100: they are percents of the units that take part."
    : `The parts add up to ${sum}, not 100: each arm gets its share of that sum, which stands beside it.`;
}

/** Whether a comparison of a metric that decides is proven to differ. */
export const isProven = ({ role, verdict }) => role === "primary" && ["better", "worse"].includes(verdict);

/** [kind, title] of the segments that results can be shown by. */
export const SEGMENT_KINDS = [
  ["stream", "Stream or not"],
  ["endpoint", "Endpoint"],
  ["api_key", "API key"],
  ["service_tier", "Service tier"],
  ["gateway", "Gateway"],
];

/** The name of one segment, such as "Streams". */
export function segmentInWords({ kind, value, name }) {
  if (value === "other") return "All others";
  if (kind === "stream") return value === "true" ? "Streams" : "No streams";
  return name ?? value;
}

const REASONS = {
  forced: "asked for an arm by header",
  arm_ended: "their arm has ended",
  enrolment_closed: "came while weights changed",
  held_out: "are held out of all experiments",
  not_covered: "are outside of the coverage",
  no_unit: "named no unit",
  paused: "came while it was paused",
};

/** Why requests are not analysed, as the end of "N requests …". */
export const reasonInWords = (reason) => REASONS[reason] ?? reason.replaceAll("_", " ");

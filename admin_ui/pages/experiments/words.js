// Words about the parts of experiments that several views share: states, metrics with their units, and the sources of
// units.

import * as format from "../../lib/format/format.js";

/** Built-in metrics by name: the title, the format of values, and what one value is of. */
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

/** The metrics that an experiment can have without feedback: [name, title]. */
export const BUILT_IN_METRICS = [
  ...Object.entries(BUILT_IN).map(([name, [title]]) => [name, title]),
  ...WITH_QUANTILES.flatMap((name) =>
    QUANTILES.map((quantile) => [`${name}.${quantile}`, `${BUILT_IN[name][0]}, ${quantile}`]),
  ),
];

/**
 * Return whether a metric is the share of units with an error or refusal, which is compared exactly: no margin is
 * tolerated.
 */
export const isError = (metric) => metric === "error_rate" || metric === "refusal_rate";

export const isQuantile = (metric) => metric.includes(".") && metric.split(".")[0] in BUILT_IN;

const NOT_IN_LEDGER = new Set(["refusal_rate", "answer_rate"]);

/** Return whether past requests or feedback tell how a metric varies. */
export const hasPast = (metric) => !NOT_IN_LEDGER.has(metric);

export const isBuiltIn = (metric) => metric.split(".")[0] in BUILT_IN;

/** Return the title of a metric; the project's own metrics have the names that they were given. */
export function metricTitle(metric) {
  const [name, quantile] = metric.split(".");
  const [title] = BUILT_IN[name] ?? [metric];
  return quantile && name in BUILT_IN ? `${title}, ${quantile}` : title;
}

/**
 * Return what one value of a metric is of: "a unit", "a request", or "" for a share of units. own: the project's own
 * metrics by name.
 */
export function metricOf(metric, own = {}) {
  const [, , of] = BUILT_IN[metric.split(".")[0]] ?? [];
  if (of !== undefined) return isQuantile(metric) ? "the unit's first request" : of;
  return own[metric]?.kind === "ratio" ? "a vote" : "a unit";
}

/** Return which direction of a metric is better; undefined while the project's own metric is not known. */
export function goalOf(metric, own = {}) {
  const [name] = metric.split(".");
  if (name in BUILT_IN) return MORE_IS_BETTER.has(name) ? "increase" : "decrease";
  return own[metric]?.goal;
}

/** Return a value of a metric as text. */
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
 * Return the difference of two values with its sign and unit. A difference of percentages is in points, since "%" would
 * read as a relative difference.
 */
export function shownDifference(metric, value, currency, own = {}) {
  const sign = value > 0 ? "+" : value < 0 ? "−" : "";
  const shown = shownValue(metric, value === null ? null : Math.abs(value), currency, own);
  const unit = shown.endsWith(" %") ? " points" : unitOf(metric) === "tokens" ? " tokens" : "";
  return sign + shown.replace(/ %$/, "") + unit;
}

/** Return an interval as text with its unit once: "+2.94 to +16.4 points". */
export const spanShown = (low, high) => `${high.endsWith(" points") ? low.replace(/ points$/, "") : low} to ${high}`;

const unitOf = (metric) => BUILT_IN[metric.split(".")[0]]?.[1];

/** Return [label, value] of a metric whose votes are labels, the highest value first. */
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

/** Return the model string that an arm serves: after the start, the one that was fixed then. */
export const servedBy = ({ serves, target }) => serves?.model ?? target.model;

/** Return whether an experiment has results: it was started. */
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

/** The sources of units that can be picked from a list: [source, title]. */
export const UNIT_SOURCES = Object.entries(SOURCES).map(([source, [title]]) => [source, title]);

export function sourceInWords(source) {
  return SOURCES[source]?.[1] ?? `“${source.replace("metadata.", "")}” in a request's metadata`;
}

/** Return the outcome window of a unit in words. */
export const windowInWords = ({ outcome_window_seconds: seconds }) => format.duration(seconds);

/**
 * Return a sentence on when the first results come: each unit has a window of its own, which begins with its first
 * request.
 */
export const firstResults = (analysis) =>
  `The first results come ${windowInWords(analysis)} after the first unit's first request; errors and ` +
  "refusals count at once.";

/** Return the declared days: "7 whole days since the start". */
export const daysDeclared = (days) => `${format.count(days)} whole ${days === 1 ? "day" : "days"} since the start`;

/**
 * Return how long an experiment has run, as "in 3 of 7 whole days since the start" until the declared days are over.
 */
export function spanInWords({ days, analysis: { min_days: least } }) {
  if (days < least) return `in ${days} of ${daysDeclared(least)}`;
  return days ? `in ${format.plural(days, "day")}` : "on the first day";
}

/** Return what happens to copies of requests, in words. shadow: {name, target, share} with the share in 10,000ths. */
export const shadowInWords = ({ name, target, share }) =>
  `Copies of ${coverageShown(share)} of the requests go to “${name}” (${targetInWords(target)}) once ` +
  "their replies are over. No end user sees anything of it, and it is not compared with the arms; each " +
  "copy is billed to this tenant, in the service tier “shadow”.";

/** Return a sentence of the API with percentages and signs as the dashboard writes them: "−5.4 %" for "-5.4%". */
export const percentsSpaced = (sentence) => sentence.replace(/(\d)%/g, "$1 %").replace(/(^|[\s(])-(?=\d)/g, "$1−");

/** Return a share in 10,000ths as a percentage with all digits: "12.35 %" for 1,235. */
export const coverageShown = (parts) => `${format.exactly(parts / 100)} %`;

/** The most characters of a unit's name. */
export const MAX_UNIT_CHARS = 512;

const SHOWN_CHARS = 160;

const settingShown = (name, value) => {
  if (name !== "system_prompt")
    return `${name.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : value}`;
  return `the system prompt “${value.length > SHOWN_CHARS ? `${value.slice(0, SHOWN_CHARS).trimEnd()}…` : value}”`;
};

/**
 * Return what an arm sets beside its model, such as "temperature 0.2, whatever a request gives"; "" if it sets nothing.
 */
export function settingsInWords({ defaults, mode }) {
  const set = Object.entries(defaults ?? {}).filter(([, value]) => value !== null && value !== undefined);
  if (set.length === 0) return "";
  return (
    `${set.map(([name, value]) => settingShown(name, value)).join(", ")}, ` +
    `${mode === "replace" ? "whatever a request gives" : "where a request leaves it open"}`
  );
}

/** Return a model string with what an arm sets beside it. target: {model, defaults, mode}. */
export const targetInWords = (target) => [target.model, settingsInWords(target)].filter(Boolean).join(" with ");

/** Return the share of units of each arm, in the order of the arms. */
export function sharesOf(arms) {
  const total = arms.reduce((sum, { weight }) => sum + weight, 0);
  return arms.map(({ weight }) => (total ? weight / total : 0));
}

/** Return a sentence on how the parts of arms are read: as percents, or as shares of their sum. */
export function partsInWords(parts) {
  const sum = Math.round(parts.reduce((total, part) => total + part, 0) * 100) / 100;
  return sum === 100
    ? "The parts add up to 100: they are percents of the units that take part."
    : `The parts add up to ${sum}, not 100: each arm gets its share of that sum, which stands beside it.`;
}

/** Return whether a comparison of a deciding metric is proven to differ. */
export const isProven = ({ role, verdict }) => role === "primary" && ["better", "worse"].includes(verdict);

/** The kinds of segments that results can be shown by: [kind, title]. */
export const SEGMENT_KINDS = [
  ["stream", "Stream or not"],
  ["endpoint", "Endpoint"],
  ["api_key", "API key"],
  ["service_tier", "Service tier"],
  ["gateway", "Gateway"],
];

/** Return the name of one segment, such as "Streams". */
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

/** Return why requests are not analysed, as the end of a sentence "N requests …". */
export const reasonInWords = (reason) => REASONS[reason] ?? reason.replaceAll("_", " ");

// A definition as texts of a form and back, what is filled in at first, and what is wrong with what was typed.

import { goalOf, isError } from "../words.js";
import { checkSampling } from "../../../lib/rules/sampling.js";
import { given, modelName, notLonger, number, whole } from "../../../lib/rules/checks.js";

const MIN_WINDOW_S = 10;
const DAY_S = 86_400;
const MAX_WINDOW_DAYS = 90;
const PARTS = 10_000;
const METADATA = "metadata.";
const MAX_ARMS = 8;
const MAX_KEY_CHARS = 64;
const MAX_PROMPT_CHARS = 32_768;

/** What lengths of time are given in: [seconds, title], the longest first. */
export const WINDOW_UNITS = [
  [String(DAY_S), "days"],
  ["3600", "hours"],
  ["60", "minutes"],
  ["1", "seconds"],
];

export const mayAddArm = (arms) => arms.length < MAX_ARMS;

/** The shadow arm of a form; without a model there is none. */
const NO_SHADOW = { name: "shadow", model: "", share: "100", defaults: {}, mode: "fill" };

/** What a new experiment has before anybody types. models: [control, treatment] as far as there are any. */
export function initialValues(models) {
  return {
    name: "",
    model: "",
    unit: "safety_identifier",
    key: "",
    coverage: "100",
    arms: [newArm("control", models[0], "50"), newArm("treatment", models[1], "50")],
    primary: [""],
    guardrails: [
      { metric: "error_rate", action: "pause", margin: "0" },
      { metric: "refusal_rate", action: "pause", margin: "0" },
      { metric: "ttft_ms.p95", action: "alert", margin: "10" },
    ],
    secondary: [],
    effect: "5",
    alpha: "5",
    tightest_at: "5000",
    window: "7",
    window_unit: String(DAY_S),
    min_days: "7",
    layer: "default",
    holdout: "",
    shadow: NO_SHADOW,
  };
}

export const newArm = (name, model = "", share = "0") => ({
  name,
  model,
  share,
  temperature: "",
  system_prompt: "",
  mode: "fill",
  defaults: {},
});

/** The values of a definition that there is. */
export function valuesOf({ name, model, unit, coverage, layer, holdout, arms, metrics, analysis, shadow }) {
  const parts = partsOfWeights(arms.map(({ weight }) => weight));
  const isMetadata = unit.from.startsWith(METADATA);
  return {
    name,
    model,
    layer: layer ?? "default",
    holdout: holdout ?? "",
    coverage: text(coverage / (PARTS / 100)),
    unit: isMetadata ? METADATA : unit.from,
    key: isMetadata ? unit.from.slice(METADATA.length) : "",
    arms: arms.map(({ name, target: { model, defaults = {}, mode = "fill" } }, place) => ({
      name,
      model,
      mode,
      defaults,
      share: text(parts[place]),
      temperature: text(defaults.temperature),
      system_prompt: defaults.system_prompt ?? "",
    })),
    primary: metrics.primary.map(({ metric }) => metric),
    guardrails: (metrics.guardrails ?? []).map(({ metric, action, margin }) => ({
      metric,
      action,
      margin: text(margin * 100),
    })),
    secondary: metrics.secondary ?? [],
    shadow: shadow
      ? {
          name: shadow.name,
          model: shadow.target.model,
          share: text(shadow.share / (PARTS / 100)),
          defaults: shadow.target.defaults ?? {},
          mode: shadow.target.mode,
        }
      : NO_SHADOW,
    effect: "5",
    alpha: text(analysis.alpha * 100),
    tightest_at: String(analysis.tightest_at),
    ...windowOf(analysis.outcome_window_seconds),
    min_days: String(analysis.min_days),
  };
}

/** A length in the longest unit of which it is a whole number. */
function windowOf(seconds) {
  const [unit] = WINDOW_UNITS.find(([each]) => seconds % Number(each) === 0) ?? WINDOW_UNITS.at(-1);
  return { window: text(seconds / Number(unit)), window_unit: unit };
}

/** How long outcomes count, in seconds; NaN where the form does not say. */
export const windowSeconds = ({ window, window_unit: unit }) =>
  window.trim() ? Math.round(Number(window) * Number(unit)) : NaN;

/** A number as it is typed, to its last digit: 0.07 * 100 is 7.000000000000001 to a computer. */
const text = (value) => (value === undefined || value === null ? "" : String(Number(value.toPrecision(12))));

/**
 * Weights as parts that are no other split once they are weights again: percents where they come to hundredths of one,
 * else numbers with the same ratio.
 */
function partsOfWeights(weights) {
  const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  const isWhole = (scale) =>
    weights.every(
      (weight) => weight * scale <= 100 && Number.isInteger(Number((weight * scale * 100).toPrecision(12))),
    );
  const scale = [100 / total, 1, 0.1, 0.01].find(isWhole) ?? 100 / total;
  return weights.map((weight) => (isWhole(scale) ? weight * scale : Math.round(weight * scale * 100) / 100));
}

/** own: the project's own metrics by name, which say which way is better. */
export function definitionOf(values, own) {
  const goal = (metric) => goalOf(metric, own) ?? "increase";
  const isOwn = (metric) => metric in own;
  return {
    name: values.name.trim(),
    model: values.model.trim() || values.name.trim(),
    unit: { from: values.unit === METADATA ? METADATA + values.key.trim() : values.unit },
    coverage: weightOf(values.coverage),
    layer: values.layer.trim() || "default",
    holdout: values.holdout || null,
    arms: values.arms.map(armOf),
    shadow: shadowOf(values.shadow),
    metrics: {
      primary: values.primary.filter(Boolean).map((metric) => ({ metric, goal: goal(metric) })),
      guardrails: values.guardrails.map(({ metric, action, margin }) => ({
        metric,
        action,
        margin: isError(metric) ? 0 : Number(margin) / 100,
        ...(isOwn(metric) && { goal: goal(metric) }),
      })),
      secondary: values.secondary,
    },
    analysis: {
      alpha: Number(values.alpha) / 100,
      tightest_at: Number(values.tightest_at),
      outcome_window_seconds: windowSeconds(values),
      min_days: Number(values.min_days),
    },
  };
}

/** A part that was typed as a percentage, in 10,000ths, which the API takes. */
export const weightOf = (part) => Math.round(Number(part) * (PARTS / 100));

/** Arms with their parts as weights. */
export const partsOf = (arms) => arms.map((arm) => ({ ...arm, weight: weightOf(arm.share) }));

export function shadowOf({ name, model, share, defaults, mode }) {
  const given = Object.fromEntries(Object.entries(defaults).filter(([, value]) => value !== null));
  return model
    ? {
        name: name.trim(),
        share: weightOf(share),
        target: { model, ...(Object.keys(given).length && { defaults: given, mode }) },
      }
    : null;
}

export function armOf({ name, model, share, temperature, system_prompt: prompt, mode, defaults }) {
  const { temperature: _, system_prompt: __, ...others } = defaults;
  const set = {
    ...others,
    ...(temperature.trim() && { temperature: Number(temperature) }),
    ...(prompt.trim() && { system_prompt: prompt }),
  };
  return {
    name: name.trim(),
    weight: weightOf(share),
    target: { model, ...(Object.keys(set).length && { defaults: set, mode }) },
  };
}

const TITLES = {
  unit: "who keeps an arm",
  key: "the key of the metadata",
  model: "the model string",
  coverage: "the part that takes part",
  primary: "the metrics that decide",
  secondary: "the watched metrics",
  shadow: "the shadow arm",
  effect: "the change worth finding",
  alpha: "false alarms",
  tightest_at: "the units that you expect",
  window: "how long outcomes count",
  window_unit: "how long outcomes count",
  min_days: "the days before a decision",
};

/** A value of the form, as a sentence names it. */
export const fieldInWords = (name) => TITLES[name] ?? `the ${name}`;

/** What is wrong, {field: sentence}; of arms "arms.0.name". */
export function wrongValues(values) {
  return {
    name: modelName(values.name),
    model: values.model.trim() ? modelName(values.model) : undefined,
    key:
      values.unit === METADATA
        ? (given(values.key, "Say which key of the metadata names the unit.") ?? notLonger(values.key, MAX_KEY_CHARS))
        : undefined,
    coverage: wrongPart(values.coverage, { min: 0.01 }),
    ...wrongArms(values.arms),
    ...wrongShadow(values),
    "primary.0": values.primary.some(Boolean) ? undefined : "Choose the metric that decides.",
    ...Object.fromEntries(
      values.guardrails.map(({ margin }, place) => [
        `guardrails.${place}.margin`,
        number(margin, { min: 0, max: 1000 }),
      ]),
    ),
    effect:
      given(values.effect, "Give the smallest change that is worth knowing of, such as 5.") ??
      number(values.effect, { min: 0.1, max: 1000 }),
    alpha:
      given(values.alpha, "Say how many false alarms there may be, such as 5.") ??
      number(values.alpha, { min: 0.01, max: 20 }),
    tightest_at: whole(values.tightest_at, { min: 20, max: 100_000_000 }),
    window: wrongWindow(values),
    min_days: whole(values.min_days, { max: 365 }),
  };
}

function wrongWindow(values) {
  const wrong =
    given(values.window, "Say how long what a unit does counts, such as 7 days.") ??
    number(values.window, { min: 0, max: Infinity });
  if (wrong) return wrong;
  if (windowSeconds(values) < MIN_WINDOW_S) return "It is at least 10 seconds.";
  return windowSeconds(values) > MAX_WINDOW_DAYS * DAY_S ? `It is at most ${MAX_WINDOW_DAYS} days.` : undefined;
}

/**
 * A part of the units, in hundredths of a percent at the finest: the API counts in 10,000ths, and nothing is rounded.
 */
export function wrongPart(text, { min = 0 } = {}) {
  const wrong = given(text, `Give a part of ${min} to 100 %.`) ?? number(text, { min, max: 100 });
  return wrong ?? (/\.\d{3,}/.test(text) ? "At most two digits after the point, such as 0.25." : undefined);
}

function wrongArms(arms) {
  const wrong = {};
  arms.forEach(({ name, model, share, temperature, system_prompt: prompt }, place) => {
    const isTwice = arms.findIndex((arm) => arm.name.trim() === name.trim()) < place;
    wrong[`arms.${place}.name`] = modelName(name) ?? (isTwice ? "Two arms have the same name." : undefined);
    wrong[`arms.${place}.model`] = model ? undefined : "Choose what the arm serves.";
    wrong[`arms.${place}.share`] = wrongPart(share);
    wrong[`arms.${place}.temperature`] = checkSampling({ temperature }).temperature;
    wrong[`arms.${place}.system_prompt`] = notLonger(prompt, MAX_PROMPT_CHARS);
  });
  const without = tooFew(arms.map(({ share }) => share));
  if (without !== undefined) wrong[`arms.${without}.share`] ??= TOO_FEW;
  return wrong;
}

export const TOO_FEW = "At least two arms need a part above 0.";

/** The place of the first part that should be above 0, where less than two are; undefined where nothing is wrong. */
export function tooFew(parts) {
  const isAbove = (part) => Number(part) > 0;
  return parts.filter(isAbove).length < 2 ? parts.findIndex((part) => !isAbove(part)) : undefined;
}

function wrongShadow({ shadow: { name, model, share }, arms }) {
  if (!model) return {};
  return {
    "shadow.name":
      modelName(name) ?? (arms.some((arm) => arm.name.trim() === name.trim()) ? "An arm has this name." : undefined),
    "shadow.share": wrongPart(share),
  };
}

const OF_ARM = {
  name: "name",
  weight: "share",
  "target.model": "model",
  "target.mode": "mode",
  "target.defaults.temperature": "temperature",
  "target.defaults.system_prompt": "system_prompt",
};
const OF_SHADOW = { name: "name", share: "share", target: "model", "target.model": "model" };
const OF_ANALYSIS = {
  alpha: "alpha",
  tightest_at: "tightest_at",
  outcome_window_seconds: "window",
  min_days: "min_days",
};
const ALONE = new Set(["name", "model", "coverage", "layer", "holdout", "arms"]);

/**
 * The field of the form that the API calls so, such as "arms.1.share" for "arms[1].weight"; undefined where none is.
 */
export function fieldOfParam(param, values) {
  if (ALONE.has(param)) return param;
  if (param.startsWith("unit")) return values.unit === METADATA ? "key" : "unit";
  const found = param.match(/^(?<head>[a-z.]+)\[(?<place>\d+)\]\.?(?<rest>.*)$/);
  const { head, place, rest = "" } = found?.groups ?? { head: param.split(".").slice(0, 2).join(".") };
  if (head === "arms") return rest in OF_ARM ? `arms.${place}.${OF_ARM[rest]}` : "arms";
  if (head.startsWith("shadow")) return `shadow.${OF_SHADOW[param.slice("shadow.".length)] ?? "model"}`;
  if (head.startsWith("analysis.")) return OF_ANALYSIS[head.slice("analysis.".length)];
  if (head === "metrics.primary") return `primary.${place === undefined ? 0 : (placesOf(values.primary)[place] ?? 0)}`;
  if (head === "metrics.guardrails")
    return place === undefined ? "guardrails" : `guardrails.${place}.${rest === "margin" ? "margin" : "metric"}`;
  return head === "metrics.secondary" ? "secondary" : undefined;
}

/** Where the metrics stand that are chosen: those that are not are left out of the definition. */
const placesOf = (metrics) => metrics.flatMap((metric, place) => (metric ? [place] : []));

// The conversion between an experiment's definition and the texts of its form, and the initial texts.

import { goalOf, isError } from "../words.js";

export const MIN_WINDOW_S = 10;

export const DAY_S = 86_400;

export const MAX_WINDOW_DAYS = 90;

const PARTS = 10_000;

export const METADATA = "metadata.";

const MAX_ARMS = 8;

export const MAX_KEY_CHARS = 64;

export const MAX_PROMPT_CHARS = 32_768;

/** The units of time of the form: [seconds, title], the longest first. */
export const WINDOW_UNITS = [
  [String(DAY_S), "days"],
  ["3600", "hours"],
  ["60", "minutes"],
  ["1", "seconds"],
];

export const mayAddArm = (arms) => arms.length < MAX_ARMS;

/** The values of a form without a shadow arm: one whose model is "". */
const NO_SHADOW = { name: "shadow", model: "", share: "100", defaults: {}, mode: "fill" };

/** Return the values of a new experiment. models: [control, treatment], as far as there are any. */
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

/** Return the form's values of an existing definition. */
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

/** Return a duration in the longest unit of which it is a whole number. */
function windowOf(seconds) {
  const [unit] = WINDOW_UNITS.find(([each]) => seconds % Number(each) === 0) ?? WINDOW_UNITS.at(-1);
  return { window: text(seconds / Number(unit)), window_unit: unit };
}

/** Return the outcome window of a form in seconds; NaN if the form has none. */
export const windowSeconds = ({ window, window_unit: unit }) =>
  window.trim() ? Math.round(Number(window) * Number(unit)) : NaN;

/** Return a number as a person types it, without rounding errors: 0.07 * 100 is 7.000000000000001 in floating point. */
const text = (value) => (value === undefined || value === null ? "" : String(Number(value.toPrecision(12))));

/**
 * Return weights as parts that become the same weights again: percents if they are whole hundredths of a percent, else
 * numbers with the same ratio.
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

/**
 * Return the definition of a form's values. own: the project's own metrics by name, which say which direction is
 * better.
 */
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

/** Return a typed percentage in 10,000ths, as the API takes it. */
export const weightOf = (part) => Math.round(Number(part) * (PARTS / 100));

/** Return arms with their parts as weights. */
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

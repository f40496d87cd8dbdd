// The fields of the form: their names in sentences, and the field that an error of the API is about.

import { METADATA } from "./values.js";

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

/** Return the name of a field for use in a sentence. */
export const fieldInWords = (name) => TITLES[name] ?? `the ${name}`;

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
 * Return the form's field of an API parameter, such as "arms.1.share" for "arms[1].weight"; undefined if there is none.
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

/** Return the places of chosen metrics among all; the definition leaves out the others. */
const placesOf = (metrics) => metrics.flatMap((metric, place) => (metric ? [place] : []));

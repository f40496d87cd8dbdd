// Checks of the values typed into the form of an experiment.

import { checkSampling } from "../../../lib/rules/sampling.js";
import { given, modelName, notLonger, number, whole } from "../../../lib/rules/checks.js";
import {
  DAY_S,
  MAX_KEY_CHARS,
  MAX_PROMPT_CHARS,
  MAX_WINDOW_DAYS,
  METADATA,
  MIN_WINDOW_S,
  windowSeconds,
} from "./values.js";

/** Return {field: sentence} of the values that are wrong; a field of an arm is named "arms.0.name". */
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

/** Check a percentage of the units, which has at most two decimal places, since the API counts in 10,000ths. */
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

/** Return the place of the first part that has to be above 0, if fewer than two are; else undefined. */
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

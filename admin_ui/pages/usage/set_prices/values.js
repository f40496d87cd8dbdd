// The conversion between a price book and the texts of its form, and the checks of what is typed.

import { fromNanos, toNanos } from "../../../lib/format/amount.js";

export const TIERS = ["*", "default", "flex", "priority", "batch", "shadow"];

export const PRICES = [
  ["input", "Input"],
  ["cached_input", "Cached input"],
  ["output", "Output"],
];

export const NEW_ENTRY = { model: "*", adapter_class: "*", service_tier: "*", input: "", cached_input: "", output: "" };

export const typed = (entry) => ({
  ...entry,
  ...Object.fromEntries(PRICES.map(([name]) => [name, fromNanos(entry[`${name}_nanos_per_million`])])),
});

const basisPoints = (percent) => Math.round(Number(String(percent).replace(",", ".")) * 100);

const LABEL = /^(\*|[A-Za-z0-9._-]{1,64})$/;

/** Return what is wrong, by place and field: "entries.0.input". */
export function check({ entries, discounts, currency, effective_at: at }) {
  const wrong = {};
  entries.forEach((entry, place) => {
    for (const [name] of PRICES) {
      const isLeftOut = name === "cached_input" && entry[name] === "";
      if (!isLeftOut && toNanos(entry[name]) === null)
        wrong[`entries.${place}.${name}`] = "Amounts are such as 0.25, with at most nine decimal places.";
    }
    const [input, cached] = [toNanos(entry.input), toNanos(entry.cached_input)];
    if (input !== null && cached > input)
      wrong[`entries.${place}.cached_input`] = "The price of cached input must not be higher than the price of input.";
    if (!entry.model.trim()) wrong[`entries.${place}.model`] = "Name a model, or * for any.";
    if (!LABEL.test(entry.adapter_class.trim()))
      wrong[`entries.${place}.adapter_class`] =
        "A class is letters, digits, dots, dashes and underlines, or * for any.";
  });
  discounts.forEach(({ percent }, place) => {
    const points = basisPoints(percent);
    if (!(points >= 1 && points <= 10_000))
      wrong[`discounts.${place}.percent`] = "Discounts are percentages from 0.01 to 100.";
  });
  if (entries.length === 0) wrong.entries = "Add at least one price.";
  if (!/^[a-z]{3}$/i.test(currency.trim())) wrong.currency = "Three letters, such as usd.";
  if (at && !(Date.parse(at) > 0)) wrong.effective_at = "That is no time.";
  return wrong;
}

export function sent(values) {
  return {
    currency: values.currency.trim().toLowerCase(),
    entries: values.entries.map((entry) => ({
      model: entry.model.trim(),
      adapter_class: entry.adapter_class.trim(),
      service_tier: entry.service_tier,
      input_nanos_per_million: toNanos(entry.input),
      output_nanos_per_million: toNanos(entry.output),
      ...(entry.cached_input !== "" && { cached_input_nanos_per_million: toNanos(entry.cached_input) }),
    })),
    discounts: values.discounts.map(({ project_id: id, percent }) => ({
      project_id: id,
      basis_points: basisPoints(percent),
    })),
    ...(values.effective_at && { effective_at: Math.floor(Date.parse(values.effective_at) / 1000) }),
  };
}

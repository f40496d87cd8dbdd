// The definition as JSON, as the API takes it.

import { Time } from "../../../components/numbers.js";
import { html } from "../../../lib/html.js";

export const times = ({ created_at: created, started_at: started, stopped_at: stopped, decided_at: decided }) =>
  [
    ["Created", created],
    ["Started", started],
    ["Stopped", stopped],
    ["Decided", decided],
  ].map(([name, at]) => [name, at ? html`<${Time} at=${at} />` : undefined]);

/** Return the definition with which a copy of this experiment would be created. */
export function definitionOf({ name, model, unit, coverage, layer, holdout, arms, metrics, analysis, shadow }) {
  const given = (values) => Object.fromEntries(Object.entries(values ?? {}).filter(([, value]) => value !== null));
  const targetOf = ({ model, defaults, mode }) => ({
    model,
    ...(Object.keys(given(defaults)).length && { defaults: given(defaults), mode }),
  });
  return {
    name,
    model,
    unit,
    coverage,
    layer,
    ...(holdout && { holdout }),
    arms: arms.map(({ name, weight, ended, target }) => ({
      name,
      weight,
      ...(ended && { ended }),
      target: targetOf(target),
    })),
    ...(shadow && { shadow: { name: shadow.name, share: shadow.share, target: targetOf(shadow.target) } }),
    metrics: { ...metrics, guardrails: metrics.guardrails.map(given) },
    analysis,
  };
}

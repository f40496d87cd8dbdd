// What one look at an experiment showed, as rows of tables and points of pictures.

/**
 * Comparisons and quantiles of one role, in the order of their declaration; of guardrails with what each does:
 * {metric, arm, control, treatment, verdict, text, …}. A metric of which too little is known is there, with the verdict
 * "waits".
 */
export function rowsOf({ comparisons, quantiles, guardrails }, role, { metrics, arms }) {
  const found = [
    ...comparisons.map((each) => ({
      ...each,
      source: each,
      control: each.control.mean,
      treatment: each.treatment.mean,
    })),
    ...quantiles.map((each) => ({
      ...each,
      source: each,
      control: each.control.estimate,
      treatment: each.treatment.estimate,
    })),
  ].filter((each) => each.role === role);
  const of = (metric, arm) => found.find((each) => each.metric === metric && each.arm === arm);
  if (role === "guardrail") return guardrails.map((each) => ({ ...of(each.metric, each.arm), ...each }));
  return declaredOf(metrics, role).flatMap((metric) =>
    arms.slice(1).map(({ name: arm }) => of(metric, arm) ?? { metric, arm, verdict: "waits" }),
  );
}

/** Names of the metrics of one role. */
const declaredOf = (metrics, role) =>
  role === "primary" ? metrics.primary.map(({ metric }) => metric) : metrics.secondary;

/**
 * Names of all metrics of an experiment, those that decide first, then those that are watched by themselves, each once.
 */
export const metricsOf = ({ primary, guardrails, secondary }) => [
  ...new Set([...primary.map(({ metric }) => metric), ...guardrails.map(({ metric }) => metric), ...secondary]),
];

/**
 * {value, low, high} of the difference from the control as a part of the control's value; undefined while that is not
 * told from 0.
 */
export function relativeOf(row) {
  const each = row?.source ?? row;
  return each?.relative_interval ? { value: each.relative_effect, ...each.relative_interval } : undefined;
}

/** The same in the metric's unit; undefined where nothing was compared yet. A bound that is not there yet is null. */
export function absoluteOf(row) {
  const each = row?.source ?? row;
  if (each?.difference) {
    const { estimate: control } = each.control;
    const { estimate: treatment } = each.treatment;
    return { value: control === null || treatment === null ? null : treatment - control, ...each.difference };
  }
  return each?.interval && { value: each.effect, ...each.interval };
}

// The results of one look at an experiment, as rows of tables and points of charts.

/**
 * Return the comparisons and quantiles of one role as rows, in the order of declaration: {metric, arm, control,
 * treatment, verdict, text, …}, for guardrails also their action. A metric with too little data has the verdict
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

/** Return the names of the metrics of one role. */
const declaredOf = (metrics, role) =>
  role === "primary" ? metrics.primary.map(({ metric }) => metric) : metrics.secondary;

/**
 * Return the names of all metrics of an experiment, each once: first those that decide, then guardrails, then secondary
 * ones.
 */
export const metricsOf = ({ primary, guardrails, secondary }) => [
  ...new Set([...primary.map(({ metric }) => metric), ...guardrails.map(({ metric }) => metric), ...secondary]),
];

/**
 * Return {value, low, high} of the difference from the control, relative to the control's value; undefined while that
 * value is not distinguished from 0.
 */
export function relativeOf(row) {
  const each = row?.source ?? row;
  return each?.relative_interval ? { value: each.relative_effect, ...each.relative_interval } : undefined;
}

/**
 * Return {value, low, high} of the difference from the control in the metric's unit; undefined if nothing was compared
 * yet. A bound is null while there is none.
 */
export function absoluteOf(row) {
  const each = row?.source ?? row;
  if (each?.difference) {
    const { estimate: control } = each.control;
    const { estimate: treatment } = each.treatment;
    return { value: control === null || treatment === null ? null : treatment - control, ...each.difference };
  }
  return each?.interval && { value: each.effect, ...each.interval };
}

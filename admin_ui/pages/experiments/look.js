// What one look at an experiment showed, as rows of tables and points of pictures.

/** Comparisons and quantiles of one role; of guardrails with what each does. {metric, arm, control, treatment, verdict, text, …}. */
export function rowsOf({ comparisons, quantiles, guardrails }, role) {
  const found = [
    ...comparisons.map((each) => ({ ...each, source: each, control: each.control.mean, treatment: each.treatment.mean })),
    ...quantiles.map((each) => ({ ...each, source: each, control: each.control.estimate, treatment: each.treatment.estimate })),
  ].filter((each) => each.role === role);
  if (role !== "guardrail") return found;
  return guardrails.map((each) => ({ ...found.find(({ metric, arm }) => metric === each.metric && arm === each.arm), ...each }));
}

/** {value, low, high} of the difference from the control as a part of the control's value; undefined while that is not told from 0. */
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

// One comparison in words: its verdict, and its difference with the interval.

import { change } from "../../../lib/format/format.js";
import { now, short } from "../../../lib/format/time.js";
import { html } from "../../../lib/html.js";
import { absoluteOf, relativeOf } from "./look.js";
import { shownDifference, spanShown } from "../words.js";

/** The word and the tone of each verdict. */
export const WORD = {
  better: ["better", "good"],
  worse: ["worse", "bad"],
  different: ["differs", "info"],
  unclear: ["open", ""],
  waits: ["waits", ""],
  harmed: ["harmed", "bad"],
  safe: ["safe", "good"],
};

/** The difference of a row with its interval, without which a difference says nothing. */
export function Difference({ row, own, currency }) {
  const relative = relativeOf(row);
  const { value, low, high } = relative ?? absoluteOf(row) ?? {};
  if (value === undefined || value === null) return html`<span class="faint">–</span>`;
  const shown = relative ? change : (each) => shownDifference(row.metric, each, currency, own);
  return html`
    <span class="difference">
      <b class="num">${shown(value)}</b>
      <small class="num faint">
        ${low === null || high === null ? "not bounded yet" : spanShown(shown(low), shown(high))}
      </small>
    </span>
  `;
}

const PROVEN = {
  better: "is better, which is proven",
  worse: "is worse, which is proven",
  different: "differs, which is proven",
};

/**
 * Return what a row proves, as a sentence beside its difference. firstAt: Unix seconds before which nothing can be
 * known.
 */
export function concludedOf({ arm, verdict, action }, { firstAt, windowText }) {
  if (verdict === "waits")
    return firstAt > now()
      ? `The first unit's window of ${windowText} ends ${short(firstAt)} at the earliest.`
      : `Too few units have ended their window of ${windowText}.`;
  if (verdict === "harmed")
    return `Harm in ${arm} is proven: it ${action === "pause" ? "pauses the experiment" : "raises an alert"}.`;
  if (verdict === "safe") return `No harm in ${arm} beyond what is tolerated, which is proven.`;
  if (action)
    return (
      `Neither harm in ${arm} nor its safety is proven yet. Proven harm ` +
      `${action === "pause" ? "pauses the experiment" : "raises an alert"}.`
    );
  return verdict in PROVEN ? `${arm} ${PROVEN[verdict]}.` : "No difference is proven yet.";
}

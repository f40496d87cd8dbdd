// What one comparison says: its verdict in a word, and its difference with the interval.

import { change } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { absoluteOf, relativeOf } from "./look.js";
import { shownDifference } from "./words.js";

/** By verdict: [word, tone]. */
export const WORD = { better: ["better", "good"], worse: ["worse", "bad"], different: ["differs", "info"], unclear: ["open", ""], harmed: ["harmed", "bad"], safe: ["safe", "good"] };

/** The interval first: a difference without it says nothing. */
export function Difference({ row, own, currency }) {
  const relative = relativeOf(row);
  const { value, low, high } = relative ?? absoluteOf(row) ?? {};
  if (value === undefined || value === null) return html`<span class="faint">–</span>`;
  const shown = relative ? change : (each) => shownDifference(row.metric, each, currency, own);
  return html`<span class="difference"><b class="num">${shown(value)}</b><small class="num faint">${low === null || high === null ? "not bounded yet" : `${shown(low)} to ${shown(high)}`}</small></span>`;
}

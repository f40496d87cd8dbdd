// Words about limits: what one bounds, how full it is, and when it is free again.

import * as format from "../../../lib/format/format.js";
import { ago } from "../../../lib/format/time.js";

export const UNITS = {
  tokens: "Tokens",
  input_tokens: "Input tokens",
  output_tokens: "Output tokens",
  requests: "Requests",
  cost_nanos: "Spend",
  concurrency: "Requests at once",
  storage_bytes: "Stored adapters",
  enqueued_batch_tokens: "Waiting batch tokens",
};
export const OF_NO_KEY = ["enqueued_batch_tokens"];
export const COUNTED = ["tokens", "input_tokens", "output_tokens", "requests", "cost_nanos"];
const SIZES = ["tokens", "input_tokens", "output_tokens"];
const WINDOWS = { minute: "per minute", day: "per day", month: "per month" };

/** Return the title of a limit: "Tokens per day", "Prepaid balance", "Tokens of one request". */
export function titleOf({ unit, window, hard }) {
  if (isBalance({ unit, window })) return "Prepaid balance";
  if (bounds({ unit, window })) return `${UNITS[unit]} of one request`;
  const title = `${UNITS[unit] ?? unit} ${WINDOWS[window] ?? ""}`.trim();
  return unit === "cost_nanos" && !hard ? `Alert: ${title.toLowerCase()}` : title;
}

export const isBalance = ({ unit, window }) => unit === "cost_nanos" && window === "none";

/** Return whether a limit bounds each request by itself, so that nothing of it is used up. */
export const bounds = ({ unit, window }) => SIZES.includes(unit) && window === "none";

/** Return the used share of a limit; a limit of 0 is full. */
export const shareOf = ({ used, reserved, max }) => (max > 0 ? (used + reserved) / max : 1);

/** Return a function that shows a value of this unit as text. */
export function shownAs(unit, currency = "usd") {
  if (unit === "cost_nanos") return (value) => format.money(value, currency);
  return unit === "storage_bytes" ? format.bytes : format.count;
}

/** Return what happens when a limit is used up, and when it begins anew. */
export function rulesOf(limit) {
  if (bounds(limit)) return "Longer requests are refused.";
  if (limit.max === 0 && limit.hard) return "Lets nothing through.";
  const percents = limit.alert_percents.map((percent) => `${percent} %`).join(", ");
  const again = limit.window_end ? `begins anew ${ago(limit.window_end)}` : null;
  const parts = [limit.hard ? "refuses at its end" : "refuses nothing", percents && `alerts at ${percents}`, again];
  const text = parts.filter(Boolean).join(" · ");
  return text[0].toUpperCase() + text.slice(1);
}

// A gauge that shows how much of a limit, or of anything with an end, is used, reserved and free.

import * as format from "../../lib/format/format.js";
import { html } from "../../lib/html.js";

/**
 * A gauge. max, used, reserved: numbers. shown(value): the value as text. label: what the gauge is about. warn, bad:
 * shares from which the gauge has these colours. compact: only the bar, for tables. isLimit: a gauge with max 0 is
 * full.
 */
export function Gauge({
  label,
  used,
  reserved = 0,
  max,
  shown = format.count,
  hint,
  compact = false,
  isLimit = false,
  warn = 0.8,
  bad = 1,
}) {
  const isFull = max <= 0 && (isLimit || used + reserved > 0);
  const share = isFull ? 1 : max > 0 ? (used + reserved) / max : 0;
  const part = (value) => ({ width: `${Math.min(100, max > 0 ? (value / max) * 100 : 0)}%` });
  const tone = share >= bad ? "bad" : share >= warn ? "warn" : "";
  const free = Math.max(0, max - used - reserved);
  const text = `${shown(used)} used${reserved ? `, ${shown(reserved)} reserved` : ""}, ${shown(free)} free of ${shown(max)}`;
  return html`
    <div class="gauge ${tone} ${compact ? "compact" : ""}">
      ${
        !compact &&
        html`
          <div class="gauge-head">
            <span>${label}</span>
            <span class="num">
              <b>${shown(used + reserved)}</b> <span class="faint">of ${shown(max)}</span>
            </span>
          </div>
        `
      }
      <div
        class="gauge-bar"
        role="meter"
        aria-label=${label}
        aria-valuemin="0"
        aria-valuemax=${max}
        aria-valuenow=${Math.min(max, used + reserved)}
        aria-valuetext=${text}
        title=${text}
      >
        <i class="gauge-used" style=${isFull ? { width: "100%" } : part(used)}></i>
        <i class="gauge-reserved" style=${part(reserved)}></i>
      </div>
      ${!compact && (hint || reserved > 0) && html`<div class="gauge-foot">${hint ?? text}</div>`}
    </div>
  `;
}

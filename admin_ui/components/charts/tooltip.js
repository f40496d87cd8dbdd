// The tooltip of a chart: the values at the time under the pointer.

import { html } from "../../lib/html.js";
import { short, utc } from "../../lib/format/time.js";
import { isNone } from "./chart_options.js";

export function Tooltip({ hover, times, series, shown, when }) {
  const { index, left, width } = hover;
  if (times[index] === undefined) return null;
  const rows = series.map(({ key, label, color, values, lows, highs }) => ({
    key,
    label,
    color,
    value: values[index],
    between: lows && !isNone(lows[index]) && [lows[index], highs[index]],
  }));
  const side = left > width / 2 ? { right: `${width - left + 12}px` } : { left: `${left + 12}px` };
  return html`
    <div class="chart-tip" style=${side}>
      ${
        when
          ? html`<span>${when(times[index])}</span>`
          : html`<time title=${utc(times[index])}>${short(times[index])}</time>`
      }
      ${rows.map(
        ({ key, label, color, value, between }) => html`
          <div key=${key}>
            <i style=${{ background: color }}></i>
            <span>${label}</span>
            <b>${shown(value)}</b>
          </div>
          ${
            between &&
            html`
              <div key="${key} between" class="chart-between">
                ${shown(between[0])} to ${shown(between[1])}
              </div>
            `
          }
        `,
      )}
    </div>
  `;
}

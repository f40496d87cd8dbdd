// Charts over time, drawn by uPlot: lines, areas or stacked bars. Hovering shows all series at that instant, dragging
// zooms by changing the URL's range, and the same data is a table under a toggle.

import * as format from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { Button } from "../button.js";
import { isNone } from "./chart_options.js";
import { Plot } from "./plot.js";
import { SUMMED, Values } from "./values.js";

/**
 * A chart with its title and a toggle that shows the same data as a table.
 * times: Unix seconds, ascending. series: [{key, label, color, values}], values by time, null where there is none.
 * kind: "line", "area", "bars" (stacked), or "band": each series has lows and highs as well, and values may be
 * negative.
 * unit: how values are shown: count, tokens, ms, percent, change, or money with a currency; or shown(value) instead.
 * zoom false: dragging does nothing. title and hint stand above the chart; note stands in place of a chart without
 * values. when(time): the label of a place on an axis that is not of time; whenTitle: the name of that axis. step:
 * seconds from one time to the next, for charts with a single time. span: [from, till] of the axis, where it is longer
 * than the times. sums: whether the table has totals.
 */
export function Chart({
  title,
  hint,
  times,
  series,
  kind = "line",
  unit = "count",
  currency,
  shown: written,
  height = 200,
  zoom = true,
  href,
  note,
  when,
  whenTitle,
  step,
  span,
  sums = SUMMED.has(unit),
}) {
  const [asTable, setAsTable] = useState(false);
  const shown = written ?? ((value) => (unit === "money" ? format.money(value, currency) : format[unit](value)));
  const isEmpty =
    !times?.length || series.every(({ values }) => values.every((value) => (kind === "band" ? isNone(value) : !value)));
  return html`
    <figure class="chart">
      <figcaption class="chart-head">
        <div>
          <h3>${href ? html`<a href=${href}>${title}</a>` : title}</h3>
          ${hint && html`<p class="hint">${hint}</p>`}
        </div>
        <${Button}
          kind="quiet"
          small
          icon=${asTable ? "chart" : "table"}
          label=${asTable ? "Show as chart" : "Show as table"}
          onClick=${() => setAsTable(!asTable)}
        />
      </figcaption>
      ${
        series.length > 1 &&
        !isEmpty &&
        html`
          <ul class="legend">
            ${series.map(
              ({ key, label, color }) => html`
                <li key=${key}>
                  <i style=${{ background: color }}></i>
                  ${label}
                </li>
              `,
            )}
          </ul>
        `
      }
      ${
        isEmpty
          ? html`
            <div class="chart-empty" style=${{ minHeight: `${height}px` }}>
              ${note ?? "Nothing in this range"}
            </div>
          `
          : asTable
            ? html`
              <${Values}
                title=${title}
                times=${times}
                series=${series}
                unit=${unit}
                currency=${currency}
                written=${written}
                when=${when}
                whenTitle=${whenTitle}
                sums=${sums}
              />
            `
            : html`
              <${Plot}
                title=${title}
                times=${times}
                series=${series}
                kind=${kind}
                height=${height}
                shown=${shown}
                isWhole=${kind !== "band" && (unit === "count" || unit === "tokens")}
                zoom=${zoom}
                when=${when}
                step=${step}
                span=${span}
              />
            `
      }
    </figure>
  `;
}

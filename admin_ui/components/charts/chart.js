// Charts over time, drawn by uPlot: lines, areas or stacked bars. Hovering shows all series at that instant, dragging
// zooms by changing the URL's range, and the same data is a table under a toggle.

import { resolved } from "../../lib/colours.js";
import * as format from "../../lib/format/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../../lib/html.js";
import { now, setRange, short, utc } from "../../lib/format/time.js";
import uPlot from "../../vendor/uPlot.esm.js";
import { Button } from "../button.js";
import { options, stacked } from "./chart_options.js";
import { Table } from "../table.js";

/**
 * times: Unix seconds, ascending. series: [{key, label, color, values}], values by time, null where there is none.
 * kind: "line", "area", "bars" (stacked), or "band": each series has lows and highs as well, and values may be
 * negative.
 * unit: how values are shown: count, tokens, ms, percent, change, or money with a currency; or shown(value) instead.
 * zoom
 * false: dragging does nothing. title and hint stand above; note stands in place of a chart without values. when(time):
 * how a place on the axis is written where it is no instant; whenTitle: what such places are. step: seconds from one
 * time to the next, for pictures of a single one. span: [from, till] of the axis, where that is more than the times.
 * sums: whether the table has totals.
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

/** Any number: where it is written in another way, the axis is, too. */
const SAMPLE = 1234.5;

const isNone = (value) => value === null || value === undefined;
const SUMMED = new Set(["count", "tokens", "money"]);

function Values({ title, times, series, unit, currency, written, when, whenTitle, sums }) {
  const listed = series.flatMap(({ key, label, values, lows, highs }) => [
    { key, label, values },
    ...(lows
      ? [
          { key: `${key} low`, label: "from", values: lows },
          { key: `${key} high`, label: "to", values: highs },
        ]
      : []),
  ]);
  const rows = times.map((at, place) => ({
    at,
    currency,
    ...Object.fromEntries(listed.map(({ key, values }) => [key, values[place]])),
  }));
  const columns = [
    when ? { key: "at", title: whenTitle, render: ({ at }) => when(at) } : { key: "at", title: "Time", format: "time" },
    ...listed.map(({ key, label }) => ({
      key,
      title: label,
      format: unit,
      ...(written && { render: (row) => html`<span class="num">${written(row[key])}</span>` }),
      total: sums && listed.length === series.length,
    })),
  ];
  return html`
    <${Table}
      name="values"
      label=${title}
      columns=${columns}
      rows=${rows.reverse()}
      rowKey=${(row) => row.at}
      filter=${false}
    />
  `;
}

function Plot({ title, times, series, kind, height, shown, isWhole, zoom, when, step, span }) {
  const root = useRef(null);
  const plot = useRef(null);
  const [hover, setHover] = useState(null);
  const look = useLook();
  const isStacked = kind === "bars" || kind === "stacked";
  // Of a stack the highest comes first, so that those below are drawn over it.
  const data = useMemo(() => {
    const columns =
      kind === "band"
        ? series.flatMap(({ values, lows, highs }) => [highs, lows, values])
        : series.map(({ values }) => values);
    return [times, ...(isStacked ? stacked(columns).reverse() : columns)];
  }, [times, series, kind]);
  const drawn = isStacked ? [...series].reverse() : series;
  const newest = useRef(series);
  newest.current = series;
  const within = useRef(null);
  const [from, till] = span ?? [times[0], times.at(-1)];
  within.current = [Math.min(times[0], from), Math.max(times.at(-1), till)];
  const colours = drawn.map(({ color }) => color).join();
  const every = step ?? (times.length > 1 ? times[1] - times[0] : 60);

  useEffect(() => {
    const width = root.current.clientWidth;
    const made = options({
      width,
      height,
      kind,
      shown,
      isWhole,
      zoom,
      when,
      step: every,
      span: () => within.current,
      bounds: () => boundsOf(newest.current),
      colours: drawn.map(({ color }) => resolved(color, root.current)),
      ink: {
        text: resolved("var(--text-3)", root.current),
        line: resolved("var(--border)", root.current),
        font: getComputedStyle(root.current).fontFamily,
      },
      onHover: setHover,
      onZoom: (from, to) => setRange({ from: Math.max(0, from), to: Math.min(now() + 86400, to) }),
    });
    plot.current = new uPlot(made, data, root.current);
    const observer = new ResizeObserver(([entry]) =>
      plot.current?.setSize({ width: Math.floor(entry.contentRect.width), height }),
    );
    observer.observe(root.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
      setHover(null);
    };
  }, [colours, kind, height, look, series.length, every, shown(SAMPLE)]);

  useEffect(() => plot.current && plot.current.data !== data && plot.current.setData(data), [data]);

  const between = ({ lows, highs }) => (lows ? ` (${shown(lows.at(-1))} to ${shown(highs.at(-1))})` : "");
  const last = series.map((each) => `${each.label} ${shown(each.values.at(-1))}${between(each)}`).join(", ");
  return html`
    <div
      class="plot"
      ref=${root}
      role="img"
      aria-label="${title}: last ${last}. The button above shows it as a table."
    >
      ${hover && html`<${Tooltip} hover=${hover} times=${times} series=${series} shown=${shown} when=${when} />`}
    </div>
  `;
}

function Tooltip({ hover, times, series, shown, when }) {
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

/** What a picture of intervals shows: those of its newer half, and 0. Older ones are wider and run out of it. */
function boundsOf(series) {
  const shown = series
    .flatMap(({ values, lows = [], highs = [] }) =>
      [values, lows, highs].flatMap((column) => column.slice(Math.floor(column.length / 2))),
    )
    .filter((value) => Number.isFinite(value));
  const [low, high] = [Math.min(0, ...shown), Math.max(0, ...shown)];
  const room = (high - low || 1) * 0.1;
  return [low - room, high + room];
}

/** Changes when the theme does: canvases have to be drawn anew. */
function useLook() {
  const [round, setRound] = useState(0);
  useEffect(() => {
    const changed = () => setRound((round) => round + 1);
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", changed);
    const observer = new MutationObserver(changed);
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      system.removeEventListener("change", changed);
      observer.disconnect();
    };
  }, []);
  return round;
}

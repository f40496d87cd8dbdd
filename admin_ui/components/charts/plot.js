// Draws a chart by uPlot, without title and table.

import { resolved } from "../../lib/colours.js";
import { html, useEffect, useMemo, useRef, useState } from "../../lib/html.js";
import { now, setRange } from "../../lib/format/time.js";
import uPlot from "../../vendor/uPlot.esm.js";
import { options, stacked } from "./chart_options.js";
import { Tooltip } from "./tooltip.js";

/** A number whose formatted text tells whether the format has changed, so that the axis is drawn again. */
const SAMPLE = 1234.5;

export function Plot({ title, times, series, kind, height, shown, isWhole, zoom, when, step, span }) {
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

/**
 * Return [low, high] of a chart of intervals: those of its newer half, and 0. Older intervals are wider and are cut
 * off.
 */
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

/** Return a number that changes with the theme, since canvases have to be drawn again. */
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

// The options of uPlot for a chart: axes, paths, cursor. Knows nothing of Preact.

import uPlot from "../../vendor/uPlot.esm.js";

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const toTheSecond = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** Half of the width of the widest label of the time axis, whose last one is centered on the right edge. */
const HALF_LABEL_PX = 24;

/** Steps between the labels of an axis of whole numbers. */
const WHOLE = Array.from({ length: 16 }, (_, zeros) => [1, 2, 2.5, 5].map((step) => step * 10 ** zeros))
  .flat()
  .filter(Number.isInteger);

/** Steps between the labels of an axis that is not of time, such as days since exposure. */
const PLACES = [1, 2, 5, 7, 14, 28, 56, 91, 182, 364];

/** Steps in seconds between the labels of a time axis; steps above a day are whole days. */
export const INSTANTS = [
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => 60 * minutes),
  ...[1, 2, 3, 4, 6, 8, 12].map((hours) => 3600 * hours),
  ...PLACES.map((days) => 86_400 * days),
];

/** Return [from, till] of the time axis: the span, with room for half a bar; one step around a single time. */
function axisOf([from, till], room, step) {
  if (from === till) return [from - step / 2, till + step / 2]; // uPlot alone would show three years
  return [from - room, till + room];
}

/** Return the columns with each series added to the ones before it. */
export function stacked(columns) {
  const below = Array(columns[0]?.length ?? 0).fill(0);
  return columns.map((values) => values.map((value, place) => (below[place] += value ?? 0)));
}

export function timeLabels(_plot, splits, _axis, _space, step) {
  let day = null;
  return splits.map((at) => {
    const when = new Date(at * 1000);
    if (step >= 86400) return date.format(when);
    const isNewDay = day !== null && when.getDate() !== day;
    day = when.getDate();
    return isNewDay ? date.format(when) : (step < 60 ? toTheSecond : clock).format(when);
  });
}

/**
 * Return uPlot's options. step: seconds from one time to the next. span(): [from, till] of the axis, which includes all
 * times. colours: one per series, without CSS variables. ink: {text, line, font}. shown(value): the value as text.
 * when(time): labels of an axis that is not of time. isWhole: values are whole numbers. bounds(): [low, high] of the
 * value axis of a band chart. onHover({index, left, width} | null), onZoom(from, to). A band has three columns for each
 * series: its highs, its lows, its values.
 */
export function options({
  width,
  height,
  kind,
  shown,
  isWhole,
  zoom,
  when,
  step,
  span,
  colours,
  ink,
  bounds,
  onHover,
  onZoom,
}) {
  const isBars = kind === "bars";
  const isBand = kind === "band";
  const axis = { stroke: ink.text, font: `11px ${ink.font}`, ticks: { show: false } };
  const drawn = colours.map((colour) => ({
    stroke: colour,
    width: isBars ? 0 : 1.75,
    fill: isBars
      ? colour
      : kind === "area" || kind === "stacked"
        ? translucent(colour, kind === "area" ? 0.12 : 0.75)
        : undefined,
    paths: isBars ? uPlot.paths.bars({ size: [0.72, 28], align: 0, radius: 0 }) : undefined,
    points: { show: !isBars && isAlone, size: 7, fill: colour },
    spanGaps: false,
  }));
  const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: false };
  return {
    width,
    height,
    bands: isBand
      ? colours.map((colour, place) => ({ series: [3 * place + 1, 3 * place + 2], fill: translucent(colour, 0.16) }))
      : undefined,
    padding: [8, HALF_LABEL_PX, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      points: { size: (_, place) => (isBand && place % 3 !== 0 ? 0 : 7) },
      drag: { x: zoom, y: false, setScale: false },
    },
    scales: {
      x: { time: !when, range: () => axisOf(span(), isBars ? step / 2 : 0, step) },
      y: { range: isBand ? bounds : (_plot, _min, max) => [0, max > 0 ? max * 1.1 : 1] },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        values: when ? (_, splits) => splits.map(when) : timeLabels,
        incrs: when ? PLACES.map((each) => each * step) : INSTANTS,
        space: 64,
        size: 28,
      },
      {
        ...axis,
        grid: { stroke: ink.line, width: 1 },
        values: (_, splits) => splits.map(shown),
        ...(isWhole && { incrs: WHOLE }),
        space: 36,
        size: widest,
      },
    ],
    series: [{}, ...(isBand ? drawn.flatMap((each) => [edge, edge, each]) : drawn)],
    drawOrder: ["axes", "series"],
    hooks: {
      drawAxes: isBand ? [(plot) => lineAtZero(plot, ink.text)] : [],
      draw: isBand ? [(plot) => loneIntervals(plot, colours)] : [],
      setCursor: [
        (plot) => {
          const { idx, left } = plot.cursor;
          if (idx === null || idx === undefined || left < 0) return onHover(null);
          const offset = plot.over.offsetLeft;
          return onHover({ index: idx, left: left + offset, width: plot.root.clientWidth });
        },
      ],
      setSelect: [
        (plot) => {
          const { left, width: chosen } = plot.select;
          if (chosen > 4) onZoom(plot.posToVal(left, "x"), plot.posToVal(left + chosen, "x"));
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        },
      ],
    },
  };
}

/** Draw the line at the value 0, where arms do not differ. */
function lineAtZero({ ctx, bbox, valToPos }, colour) {
  const at = Math.round(valToPos(0, "y", true)) + 0.5;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(bbox.left, at);
  ctx.lineTo(bbox.left + bbox.width, at);
  ctx.stroke();
  ctx.restore();
}

/**
 * Draw the interval of a band with a single time as a line, since the band has no width. first: the place of the
 * series' highs.
 */
function loneInterval({ ctx, data, bbox, valToPos }, first, colour) {
  const [highs, lows] = [data[first], data[first + 1]];
  const [at, ...others] = highs.flatMap((high, place) => (high === null || lows[place] === null ? [] : [place]));
  if (at === undefined || others.length) return;
  const within = (value) => Math.min(bbox.top + bbox.height, Math.max(bbox.top, valToPos(value, "y", true)));
  const x = valToPos(data[0][at], "x", true);
  ctx.save();
  ctx.strokeStyle = translucent(colour, 0.45);
  ctx.lineWidth = 3 * devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, within(lows[at]));
  ctx.lineTo(x, within(highs[at]));
  ctx.stroke();
  ctx.restore();
}

function loneIntervals(plot, colours) {
  for (const [place, colour] of colours.entries()) loneInterval(plot, 3 * place + 1, colour);
}

/** Return whether a series has one value, which would not show as a line. */
const isAlone = (plot, series) =>
  plot.data[series].filter((value) => value !== null && value !== undefined).length === 1;

function widest(plot, labels, axisIndex, cycle) {
  if (cycle > 1) return plot.axes[axisIndex]._size;
  const longest = Math.max(0, ...(labels ?? []).map((label) => label.length));
  return Math.max(36, longest * 6.4 + 14);
}

function translucent(colour, alpha) {
  return colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
}

export const isNone = (value) => value === null || value === undefined;

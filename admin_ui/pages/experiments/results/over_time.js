// One metric over time: each arm's difference from the control at the end of each day.

import { Chart } from "../../../components/charts/chart.js";
import { Select } from "../../../components/form.js";
import { coloursOf } from "../../../lib/colours.js";
import { change } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { useQuery } from "../../../lib/router.js";
import { metricTitle, shownDifference } from "../words.js";
import { absoluteOf, metricsOf, relativeOf } from "./look.js";
import { concludedOf } from "./verdicts.js";
import { waitingOf } from "./words.js";

const METRIC_OVER_TIME_HINT =
  "The line is what was measured by the end of each day in UTC, today by now, the band all differences " +
  "that are not excluded: one that leaves 0 outside is proven.";

const DAY_S = 86_400;

/**
 * A chart of each arm's effect by the look at the end of each day, relative to the control's value if that is
 * distinguished from 0.
 */
export function OverTime({ look, days: before, experiment, own, currency }) {
  const metrics = metricsOf(experiment.metrics);
  const [asked, ask] = useQuery("metric", "");
  const metric = metrics.includes(asked) ? asked : metrics[0];
  if (before === undefined) return null;
  const days = withLook(before, look);
  const arms = experiment.arms.slice(1).map(({ name }) => name);
  const colours = coloursOf(arms);
  const found = days.map(({ comparisons, quantiles }) =>
    [...comparisons, ...quantiles].filter((each) => each.metric === metric),
  );
  const isRelative = found.some((each) => each.some(relativeOf));
  const read = isRelative ? relativeOf : absoluteOf;
  const at = (arm, part) => found.map((each) => read(each.find(({ arm: name }) => name === arm))?.[part] ?? null);
  const series = arms.map((arm, place) => ({
    key: arm,
    label: arm,
    color: colours[place],
    values: at(arm, "value"),
    lows: at(arm, "low"),
    highs: at(arm, "high"),
  }));
  const times = days.map(({ day }) => Math.min(look.looked_at, Date.parse(`${day}T00:00:00Z`) / 1000 + DAY_S));
  const shown = isRelative ? change : (value) => shownDifference(metric, value, currency, own);
  const waits = concludedOf({ verdict: "waits" }, waitingOf(experiment));
  const options = metrics.map((name) => [name, metricTitle(name)]);
  return html`
    <div class="over-time">
      ${
        metrics.length > 1 &&
        html`<${Select} label="Metric over time" value=${metric} options=${options} onValue=${(name) => ask(name)} />`
      }
      <${Chart}
        title="${metricTitle(metric)}: difference from ${experiment.arms[0].name}"
        hint=${METRIC_OVER_TIME_HINT}
        times=${times}
        span=${[experiment.started_at, times.at(-1)]}
        series=${series}
        kind="band"
        shown=${shown}
        zoom=${false}
        height=${240}
        note="No interval yet. ${waits}"
      />
    </div>
  `;
}

/**
 * Return the days with the last one replaced by the look of the tables below, which was read at another time: chart and
 * tables then agree.
 */
function withLook(days, look) {
  const day = days.at(-1)?.day ?? new Date(1000 * look.looked_at).toISOString().slice(0, 10);
  return [...days.slice(0, -1), { day, comparisons: look.comparisons, quantiles: look.quantiles }];
}

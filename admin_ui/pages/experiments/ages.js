// The effects of an experiment by days since a unit's first request: whether users get used to an arm.

import { Chart } from "../../components/charts/chart.js";
import { Select } from "../../components/form.js";
import { coloursOf } from "../../lib/colours.js";
import { useApi } from "../../lib/data.js";
import { change } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { useQuery } from "../../lib/router.js";
import { absoluteOf, relativeOf } from "./look.js";
import { experimentPath } from "./paths.js";
import { metricTitle, shownDifference } from "./words.js";

const DAY_S = 86_400;
const EVERY_MS = 60_000;

const dayName = (at) => `day ${at / DAY_S + 1}`;

/** Of one metric, each arm's difference from the control; nothing where outcome windows have less than two days. */
export function ByAge({ projectId, experiment, own, currency }) {
  const { data } = useApi(experimentPath(projectId, experiment.id, "/ages"), {}, { every: EVERY_MS });
  const [asked, ask] = useQuery("age_metric", "");
  const found = data?.data ?? [];
  if (found.length === 0) return null;
  const metrics = [...new Set(found.map(({ metric }) => metric))];
  const metric = metrics.includes(asked) ? asked : metrics[0];
  const ofMetric = found.filter((each) => each.metric === metric);
  const days = [...new Set(ofMetric.flatMap((each) => each.days.map(({ day }) => day)))].sort((a, b) => a - b);
  const isRelative = ofMetric.some((each) => each.days.some(relativeOf));
  const read = isRelative ? relativeOf : absoluteOf;
  const colours = coloursOf(experiment.arms.slice(1).map(({ name }) => name));
  const series = ofMetric.map(({ arm, days: its }) => {
    const at = (part) => days.map((day) => read(its.find((each) => each.day === day))?.[part] ?? null);
    const place = experiment.arms.findIndex(({ name }) => name === arm) - 1;
    return { key: arm, label: arm, color: colours[place], values: at("value"), lows: at("low"), highs: at("high") };
  });
  const shown = isRelative ? change : (value) => shownDifference(metric, value, currency, own);
  const trends = ofMetric.filter(({ trend }) => trend !== "unclear").map(({ text }) => text.replaceAll("`", ""));
  return html`<div class="over-time">
    ${metrics.length > 1 && html`<${Select} label="Metric by days since exposure" value=${metric} options=${metrics.map((name) => [name, metricTitle(name)])} onValue=${(name) => ask(name)} />`}
    <${Chart} title=${`${metricTitle(metric)} by days since a unit's first request`} hint=${trends.join(" ") || "The same units on each day: an effect that fades was for the novelty. Bands of all days hold together."}
      times=${days.map((day) => day * DAY_S)} when=${dayName} whenTitle="Day" series=${series} kind="band" shown=${shown} zoom=${false} step=${DAY_S} height=${200} note="No interval yet: too few units have ended their windows" />
  </div>`;
}

// The effects of an experiment by days since a unit's first request: whether users get used to an arm.

import { Chart } from "../../../components/charts/chart.js";
import { Notice } from "../../../components/feedback.js";
import { Select } from "../../../components/form.js";
import { coloursOf } from "../../../lib/colours.js";
import { useApi } from "../../../lib/data.js";
import { change } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { useQuery } from "../../../lib/router.js";
import { absoluteOf, relativeOf } from "./look.js";
import { experimentPath } from "../paths.js";
import { isProven, metricTitle, shownDifference, windowInWords } from "../words.js";

const DAY_S = 86_400;
const EVERY_MS = 60_000;

const dayName = (at) => `day ${at / DAY_S + 1}`;

/**
 * Each arm's difference from the control in one metric, by days since exposure, with a notice if a proven effect may be
 * due to novelty. Shows nothing if outcome windows are shorter than two days.
 */
export function ByAge({ projectId, experiment, look, own, currency }) {
  const { data } = useApi(experimentPath(projectId, experiment.id, "/ages"), {}, { every: EVERY_MS });
  const [asked, ask] = useQuery("age_metric", "");
  const found = data?.data ?? [];
  if (data === undefined) return null;
  if (found.length === 0) return look.comparisons.some(isProven) && html`<${NotKnown} experiment=${experiment} />`;
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
  return html`
    <${Fading} found=${found} experiment=${experiment} />
    <div class="over-time">
      ${
        metrics.length > 1 &&
        html`
          <${Select}
            label="Metric by days since exposure"
            value=${metric}
            options=${metrics.map((name) => [name, metricTitle(name)])}
            onValue=${(name) => ask(name)}
          />
        `
      }
      <${Chart}
        title="${metricTitle(metric)} by days since a unit's first request"
        hint=${
          trends.join(" ") ||
          "The same units on each day: an effect that fades was for the novelty. Bands of all days hold together."
        }
        times=${days.map((day) => day * DAY_S)}
        when=${dayName}
        whenTitle="Day"
        series=${series}
        kind="band"
        shown=${shown}
        zoom=${false}
        step=${DAY_S}
        height=${200}
        note="No interval yet: too few units have ended their windows"
      />
    </div>
  `;
}

function NotKnown({ experiment: { analysis } }) {
  return html`
    <${Notice} title="It may be for the novelty alone">
      Users may try what is new and lose interest. Whether an effect fades with the days since a unit's first request
      is known where outcomes count for two days or more; here they count for ${windowInWords(analysis)}.
    <//>
  `;
}

/** The notice that effects on deciding metrics fade, by which somebody might choose an arm. */
function Fading({ found, experiment: { metrics } }) {
  const deciding = metrics.primary.map(({ metric }) => metric);
  const fading = found.filter(({ metric, trend }) => trend === "fading" && deciding.includes(metric));
  if (fading.length === 0) return null;
  return html`
    <${Notice} tone="warn" title="It may be for the novelty alone">
      ${fading.map(({ text }) => text.replaceAll("`", "")).join(" ")} What stays is nearer to what the last day below
      shows than to the effect over the whole window.
    <//>
  `;
}

// The results of metrics on which people and a judge voted: people's opinion, estimated with the help of the judge.

import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { html } from "../../../lib/html.js";
import { metricTitle, shownDifference, spanShown } from "../words.js";

const HINT =
  "People voted about some units, a judge about many. The judge's bias is taken out where both voted, if " +
  "people vote about units drawn at random. Differences are in the metric's own unit, those of " +
  "percentages in points. They decide nothing.";

export function Judged({ look, experiment, own, currency }) {
  if (look.judged.length === 0) return null;
  const span = (metric, { low, high }) =>
    low === null || high === null
      ? "not bounded yet"
      : spanShown(shownDifference(metric, low, currency, own), shownDifference(metric, high, currency, own));
  const difference = (metric, value, interval) => html`
    <span class="difference">
      <b class="num">${shownDifference(metric, value, currency, own)}</b>
      ${interval && html`<small class="num faint">${span(metric, interval)}</small>`}
    </span>
  `;
  const columns = [
    { key: "metric", title: "Metric", value: ({ metric }) => metricTitle(metric) },
    { key: "arm", title: "Arm", hide: experiment.arms.length < 3 },
    {
      key: "labelled",
      title: "Units by people",
      format: "count",
      value: ({ control, treatment }) => control.num_labelled + treatment.num_labelled,
    },
    {
      key: "judged",
      title: "Units by the judge alone",
      format: "count",
      value: ({ control, treatment }) => control.num_judged + treatment.num_judged,
    },
    {
      key: "effect",
      title: "With the judge's help",
      align: "end",
      sort: false,
      csv: false,
      render: ({ metric, effect, interval }) => difference(metric, effect, interval),
    },
    {
      key: "people",
      title: "By people alone",
      align: "end",
      sort: false,
      csv: false,
      render: ({ metric, effect_by_people: effect, interval_by_people: interval }) =>
        difference(metric, effect, interval),
    },
    {
      key: "judge",
      title: "The judge's own, biased",
      align: "end",
      sort: false,
      csv: false,
      render: ({ metric, effect_by_judge: effect }) => difference(metric, effect),
    },
  ];
  return html`
    <${Section} title="With a judge" hint=${HINT}>
      <${Table}
        name="judged"
        label="With a judge"
        columns=${columns}
        rows=${look.judged}
        rowKey=${({ metric, arm }) => `${metric} ${arm}`}
        filter=${false}
      />
    <//>
  `;
}

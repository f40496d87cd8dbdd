// The metrics of one role: each arm beside the control, with what may be concluded.

import { Badge } from "../../../components/badge.js";
import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { html } from "../../../lib/html.js";
import { metricOf, metricTitle, shownValue } from "../words.js";
import { rowsOf } from "./look.js";
import { Difference, WORD, concludedOf } from "./verdicts.js";
import { waitingOf } from "./words.js";

export function OfRole({ look, experiment, own, currency, role, title, hint }) {
  const rows = rowsOf(look, role, experiment);
  const waiting = waitingOf(experiment);
  if (rows.length === 0) return null;
  const value = (metric, estimate) =>
    estimate === undefined
      ? html`<span class="faint">–</span>`
      : html`<span class="num">${shownValue(metric, estimate, currency, own)}</span>`;
  const columns = [
    {
      key: "metric",
      title: "Metric",
      value: ({ metric }) => metricTitle(metric),
      render: ({ metric }) => html`
        <span>
          ${metricTitle(metric)}
          <br />
          <small class="faint">${metricOf(metric, own)}</small>
        </span>
      `,
    },
    { key: "arm", title: "Arm", hide: experiment.arms.length < 3 },
    {
      key: "control",
      title: experiment.arms[0].name,
      align: "end",
      sort: false,
      render: ({ metric, control }) => value(metric, control),
    },
    {
      key: "treatment",
      title: experiment.arms.length < 3 ? experiment.arms[1].name : "With the arm",
      align: "end",
      sort: false,
      render: ({ metric, treatment }) => value(metric, treatment),
    },
    {
      key: "difference",
      title: "Difference",
      align: "end",
      sort: false,
      csv: false,
      render: (row) => html`<${Difference} row=${row} own=${own} currency=${currency} />`,
    },
    {
      key: "verdict",
      title: "",
      sort: false,
      class: "shrink",
      render: ({ verdict }) => html`
        <${Badge} dot tone=${WORD[verdict][1]}>
          ${WORD[verdict][0]}
        <//>
      `,
    },
    {
      key: "text",
      title: "What may be concluded",
      sort: false,
      class: "name-cell text-cell",
      value: (row) => concludedOf(row, waiting),
    },
  ];
  return html`
    <${Section} title=${title} hint=${hint}>
      <${Table}
        name=${role}
        label=${title}
        columns=${columns}
        rows=${rows}
        rowKey=${({ metric, arm }) => `${metric} ${arm}`}
        filter=${false}
      />
    <//>
  `;
}

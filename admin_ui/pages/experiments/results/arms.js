// The arms of an experiment: units of each, and the shadow arm beside them.

import { Badge } from "../../../components/badge.js";
import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { plural } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { IsControl } from "../tabs.js";
import { servedBy, shownValue } from "../words.js";
import { OUTCOMES } from "./words.js";

const SHADOW_HINT =
  "Copies of requests, whose answers nobody got. It is not compared with the arms; copies wait behind " +
  "requests, so the time on the engine alone is that of the model.";

export function ArmUnits({ look, experiment }) {
  const columns = [
    {
      key: "name",
      title: "Arm",
      render: ({ name, place, ended, chosen }) => html`
        <span>
          ${name} <${IsControl} name=${name} place=${place} /> ${ended && html`<${Badge}>ended<//>`}${" "}
          ${chosen && html`<${Badge} tone="good">chosen<//>`}
        </span>
      `,
    },
    { key: "model", title: "Serves", render: ({ model }) => html`<code>${model}</code>` },
    { key: "share", title: "Of new units", format: "percent" },
    { key: "units", title: "Units", format: "count", total: true },
    { key: "compliance", title: "Whole treatment", format: "percent" },
  ];
  const rows = experiment.arms.map((arm, place) => ({
    place,
    ...arm,
    ...look.arms[place],
    chosen: arm.name === experiment.decided_arm,
    model: servedBy(arm),
  }));
  return html`
    <${Table}
      name="arms"
      label="Units by arm"
      columns=${columns}
      rows=${rows}
      rowKey=${({ name }) => name}
      filter=${false}
    />
  `;
}

/** The shadow arm. It is not compared with the arms: no client got its answers, and copies wait behind requests. */
export function ShadowArm({ shadow, currency }) {
  const times = ({ p50, p95 }) =>
    p50 === null
      ? html`<span class="faint">–</span>`
      : html`
        <span class="num">
          ${shownValue("ttft_ms", p50, currency, [])}
          <br />
          <small class="faint">${shownValue("ttft_ms", p95, currency, [])}</small>
        </span>
      `;
  const columns = [
    {
      key: "name",
      title: "Arm",
      render: ({ name }) => html`
        <span>
          ${name} <${Badge}>shadow<//>
        </span>
      `,
    },
    { key: "requests", title: "Copies", format: "count" },
    { key: "errors", title: "Errors", format: "count" },
    { key: "completion_tokens", title: "Completion tokens", format: "count" },
    {
      key: "cost_nanos",
      title: "Cost",
      align: "end",
      render: ({ cost_nanos: nanos }) =>
        html`<span class="num">${shownValue("cost_nanos", nanos, currency, [])}</span>`,
    },
    ...[
      ["engine_ms", "On the engine, p50 and p95"],
      ["ttft_ms", "First token, p50 and p95"],
      ["latency_ms", "Whole, p50 and p95"],
    ].map(([key, title]) => ({
      key,
      title,
      align: "end",
      sort: false,
      csv: false,
      render: (row) => times(row[key]),
    })),
  ];
  const dropped = Object.entries(shadow.outcomes)
    .filter(([name]) => name in OUTCOMES)
    .map(([name, count]) => `${plural(count, "copy", "copies")}: ${OUTCOMES[name]}`);
  return html`
    <${Section}
      title="Shadow"
      hint=${SHADOW_HINT}
    >
      <${Table}
        name="shadow"
        label="Shadow arm"
        columns=${columns}
        rows=${[shadow]}
        rowKey=${({ name }) => name}
        filter=${false}
      />
      ${dropped.length > 0 && html`<p class="hint">Not run: ${dropped.join("; ")}.</p>`}
    <//>
  `;
}

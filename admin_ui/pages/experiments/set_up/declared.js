// The table of an experiment's declared metrics, each with its role in the decision and its rule.

import { Badge } from "../../../components/badge.js";
import { Table } from "../../../components/table.js";
import { percent } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { metricTitle } from "../words.js";

export function Declared({ experiment: { metrics } }) {
  const rows = [
    ...metrics.primary.map(({ metric, goal }) => ({
      metric,
      role: "decides",
      rule: goal === "increase" ? "more is better" : "less is better",
    })),
    ...metrics.guardrails.map(({ metric, margin, action }) => ({
      metric,
      role: "guardrail",
      rule: `${margin ? `up to ${percent(margin)} worse is tolerated; ` : ""}proven harm ${action === "pause" ? "pauses the experiment" : "raises an alert"}`,
    })),
    ...metrics.secondary.map((metric) => ({ metric, role: "watched", rule: "decides nothing" })),
  ];
  const columns = [
    {
      key: "metric",
      title: "Metric",
      value: ({ metric }) => metricTitle(metric),
      render: ({ metric }) => html`
        <span>
          ${metricTitle(metric)}
          ${
            metricTitle(metric) !== metric &&
            html`
              ${" "}
              <code class="faint">${metric}</code>
            `
          }
        </span>
      `,
    },
    {
      key: "role",
      title: "Role",
      render: ({ role }) => html`<${Badge} tone=${role === "decides" ? "info" : ""}>${role}<//>`,
    },
    { key: "rule", title: "Rule" },
  ];
  return html`
    <${Table}
      name="metrics"
      label="Metrics"
      columns=${columns}
      rows=${rows}
      rowKey=${({ metric, role }) => `${role} ${metric}`}
      filter=${false}
    />
  `;
}

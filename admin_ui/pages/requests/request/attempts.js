// The attempts of a request, one by one.

import { Code } from "../../../components/button.js";
import { Table } from "../../../components/table.js";
import { html } from "../../../lib/html.js";
import { TITLES } from "../reasons.js";

export function Attempts({ request }) {
  const numbers = [...new Set(request.attempts.map(({ attempt }) => attempt))].sort((a, b) => a - b);
  const rows = request.attempts.map((attempt) => ({
    ...attempt,
    currency: request.currency,
    key: `${attempt.request_id} ${attempt.attempt} ${attempt.revision}`,
    number: numbers.indexOf(attempt.attempt) + 1,
  }));
  const columns = [
    {
      key: "number",
      title: "Attempt",
      render: (row) => html`
        ${row.number}
        ${
          row.revision > 0 &&
          html`
            ${" "}
            <span class="faint">recount ${row.revision}</span>
          `
        }
      `,
    },
    { key: "model", title: "Model", hide: new Set(rows.map(({ model }) => model)).size < 2 },
    { key: "finish_reason", title: "Ended", value: ({ finish_reason: reason }) => TITLES[reason] ?? reason },
    { key: "queue_ms", title: "Queue", format: "ms" },
    { key: "prefill_ms", title: "Prefill", format: "ms" },
    { key: "decode_ms", title: "Decode", format: "ms" },
    { key: "latency_ms", title: "Took", format: "ms" },
    {
      key: "adapter_load_bytes",
      title: "Adapter loaded",
      format: "bytes",
      hide: rows.every((row) => !row.adapter_load_bytes),
    },
    {
      key: "adapter_digest",
      title: "Adapter's content",
      hide: rows.every((row) => !row.adapter_digest),
      render: ({ adapter_digest: digest }) => (digest ? html`<${Code} text=${digest} max=${16} what="digest" />` : "–"),
    },
    { key: "finished_at", title: "Ended at", format: "time" },
    { key: "cost_nanos", title: "Cost", format: "money", total: true },
  ];
  return html`
    <${Table}
      name="attempts"
      label="Attempts"
      columns=${columns}
      rows=${rows}
      rowKey=${({ key }) => key}
      filter=${false}
    />
  `;
}

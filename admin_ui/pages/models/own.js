// The base models that a tenant may use: the context length and the tenant's price of each.

import { Badge } from "../../components/badge.js";
import { Empty } from "../../components/feedback.js";
import { Money } from "../../components/numbers.js";
import { Table } from "../../components/table.js";
import { useAll } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";

const EVERY_MS = 10_000;

export function Bases({ projectId }) {
  const models = useAll(pathOf(projectId, "/models"), {}, { every: EVERY_MS });
  const price = (key, title, which, kind) => ({
    key,
    title,
    align: "end",
    value: (row) => row[which]?.[kind],
    render: ({ [which]: price }) =>
      price
        ? html`<${Money} nanos=${price[kind]} currency=${price.currency} />`
        : html`<span class="faint">no price</span>`,
  });
  const columns = [
    { key: "name", title: "Model", render: ({ name }) => html`<code>${name}</code>` },
    {
      key: "num_ready",
      title: "State",
      value: ({ num_ready: number }) => (number ? "ready" : "not ready"),
      render: ({ num_ready: number }) => html`
        <${Badge} dot tone=${number ? "good" : "warn"} title=${plural(number, "replica")}>
          ${number ? "ready" : "not ready"}
        <//>
      `,
    },
    { key: "context_length", title: "Context, tokens", format: "tokens" },
    price("input", "Input", "price", "input_nanos_per_million"),
    price("cached", "Cached input", "price", "cached_input_nanos_per_million"),
    price("output", "Output", "price", "output_nanos_per_million"),
    price("adapter_input", "Input with an adapter", "adapter_price", "input_nanos_per_million"),
    price("adapter_output", "Output with an adapter", "adapter_price", "output_nanos_per_million"),
  ];
  return html`
    <p class="hint">
      Prices are for a million tokens, with the tenant's discount. Requests name a model as shown here, or one of its
      adapters behind a colon.
    </p>
    <${Table}
      name="bases"
      label="Models that may be used"
      columns=${columns}
      rows=${models.data}
      error=${models.error}
      reload=${models.reload}
      loading=${models.loading}
      what="load the models"
      filter=${false}
      empty=${html`<${Empty} icon="models" title="No model may be used yet">
          The operator decides which models a tenant may use.
        <//>`}
    />
  `;
}

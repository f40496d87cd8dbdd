// The table of a request's usage and its cost.

import { Empty } from "../../../components/feedback.js";
import { Table } from "../../../components/table.js";
import { html } from "../../../lib/html.js";
import { can } from "../../../lib/session.js";

const ITEMS = { input: "Input", "cached input": "Cached input", output: "Output" };

export function Prices({ request }) {
  const rows = request.attempts.flatMap((attempt, place) =>
    attempt.price_lines
      .filter(({ tokens, cost_nanos: cost }) => tokens || cost)
      .map((line) => ({
        ...line,
        currency: request.currency,
        key: `${place} ${line.item}`,
        place: place + 1,
        version: attempt.price_version,
        own_key: attempt.own_key,
        price_class: attempt.price_class,
        discount: attempt.discount_percent,
      })),
  );
  const columns = [
    { key: "item", title: "Of", value: ({ item }) => ITEMS[item] ?? item },
    { key: "place", title: "Attempt", align: "end", hide: request.attempts.length < 2 },
    { key: "tokens", title: "Tokens", format: "tokens", total: true },
    { key: "nanos_per_million", title: "Per million", format: "money" },
    {
      key: "discount",
      title: "Discount",
      align: "end",
      render: ({ discount }) => (discount ? `${discount} %` : "–"),
    },
    { key: "price_class", title: "Class", render: ({ price_class: name }) => (name === "none" ? "base" : name) },
    {
      key: "version",
      title: "Prices",
      align: "end",
      render: ({ version, own_key: own }) =>
        own
          ? "the tenant's own key"
          : version
            ? can("billing.read")
              ? html`<a href="/admin/usage/prices">version ${version}</a>`
              : `version ${version}`
            : html`<span class="faint">none in force</span>`,
    },
    { key: "cost_nanos", title: "Cost", format: "money", total: true },
  ];
  return html`
    <${Table}
      name="prices"
      label="Price lines"
      columns=${columns}
      rows=${rows}
      rowKey=${({ key }) => key}
      filter=${false}
      empty=${html`<${Empty} icon="usage" title="It used nothing" />`}
    />
  `;
}

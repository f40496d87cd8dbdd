// Usage by service tier, where there is more than the default one: copies for shadow arms of experiments have a tier of
// their own.

import { Badge } from "../../components/badge.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useBuckets } from "../../lib/buckets.js";
import { html } from "../../lib/html.js";

const SHADOW = "shadow";
const SUMS = ["num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens", "cost_nanos"];

/** Usage by service tier. filters: the result of useFilters; usage of an adapter is not recorded by tier. */
export function ByTier({ filters, range, currency }) {
  const lists = { project_ids: filters.project, models: filters.model, api_key_ids: filters.key };
  const narrowed = Object.fromEntries(
    Object.entries(lists)
      .filter(([, id]) => id)
      .map(([name, id]) => [name, [id]]),
  );
  const { data } = useBuckets(filters.adapter ? null : "/usage/completions", range, {
    ...narrowed,
    group_by: ["service_tier"],
  });
  const rows = byTier(data ?? []).map((row) => ({ ...row, currency }));
  if (rows.every(({ tier }) => tier === "default")) return null;
  const hasShadow = rows.some(({ tier }) => tier === SHADOW);
  const columns = [
    {
      key: "tier",
      title: "Service tier",
      render: ({ tier }) =>
        tier === SHADOW
          ? html`
            <span>
              ${tier} <${Badge}>copies<//>
            </span>
          `
          : tier,
    },
    { key: "num_model_requests", title: "Requests", format: "count", total: true },
    { key: "input_tokens", title: "Input", format: "tokens", total: true },
    { key: "input_cached_tokens", title: "of which cached", format: "tokens", total: true },
    { key: "output_tokens", title: "Output", format: "tokens", total: true },
    { key: "cost_nanos", title: "Cost", format: "money", total: true },
  ];
  return html`
    <${Section}
      title="By service tier"
      hint=${
        hasShadow
          ? "The tier “shadow” is of copies for shadow arms of experiments: nobody got their answers, and " +
            "each is billed. They are in the numbers above."
          : undefined
      }
    >
      <${Table}
        name="tiers"
        label="Usage by service tier"
        columns=${columns}
        rows=${rows}
        rowKey=${({ tier }) => tier}
        filter=${false}
      />
    <//>
  `;
}

/** Return the sums of all buckets by tier, the tier with most requests first. */
function byTier(buckets) {
  const found = new Map();
  for (const result of buckets.flatMap(({ results }) => results)) {
    const row = found.get(result.service_tier) ?? {
      tier: result.service_tier,
      ...Object.fromEntries(SUMS.map((name) => [name, 0])),
    };
    for (const name of SUMS) row[name] += result[name];
    found.set(result.service_tier, row);
  }
  return [...found.values()].sort((a, b) => b.num_model_requests - a.num_model_requests);
}

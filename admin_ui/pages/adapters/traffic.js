// The traffic of each version of an adapter, side by side: requests, errors and latencies over time.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Chart } from "../../components/charts/chart.js";
import { Empty, ErrorBox, Skeleton } from "../../components/feedback.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useBuckets } from "../../lib/buckets.js";
import { colourOf } from "../../lib/colours.js";
import { html, useMemo } from "../../lib/html.js";
import { useRange } from "../../lib/format/time.js";
import { tryIt } from "./paths.js";

export function Traffic({ adapter }) {
  const range = useRange();
  const path = `/projects/${encodeURIComponent(adapter.project_id)}/traffic`;
  const traffic = useBuckets(path, range, { adapter_ids: [adapter.id], group_by: ["adapter_version"] });
  const versions = useMemo(() => (traffic.data ? byVersion(traffic.data) : undefined), [traffic.data]);
  if (traffic.error?.isMissing)
    return html`
      <${Empty} icon="usage" title="This gateway keeps no traffic by version">
        A newer one does. Requests shows each request with the version that answered it.
      <//>
    `;
  const failed = html`<${ErrorBox} error=${traffic.error} what="load the traffic" retry=${traffic.reload} />`;
  if (versions === undefined) return traffic.error ? failed : html`<${Skeleton} height=${200} />`;
  if (versions.length === 0) {
    return html`
      ${failed}
      <${Empty}
        icon="bolt"
        title="No requests, ${range.label.toLowerCase()}"
        command=${command(adapter)}
        action=${html`<${Button} kind="primary" icon="playground" href=${tryIt(adapter)}>
            Try it
          <//>`}
      >
        The first one shows here within a minute.
      <//>
    `;
  }
  const times = traffic.data.map(({ start_time: at }) => at);
  const series = (value) =>
    versions.map(({ version, values }) => ({
      key: version,
      label: `v${version}`,
      color: colourOf(`${adapter.id} ${version}`),
      values: values.map((result) => (result ? value(result) : null)),
    }));
  const counts = (value) =>
    series(value).map((each) => ({ ...each, values: each.values.map((number) => number ?? 0) }));
  return html`
    ${failed}
    <${Section} title="By version" hint=${range.label}>
      <${ByVersion} versions=${versions} adapter=${adapter} />
    <//>
    <div class="grid-2">
      <${Chart} title="Requests" kind="bars" times=${times} series=${counts((result) => result.num_requests)} />
      <${Chart}
        title="Failed"
        kind="bars"
        times=${times}
        series=${counts((result) => result.num_errors)}
        note="No request failed in this range"
      />
      <${Chart}
        title="Time to first token, p50"
        times=${times}
        unit="ms"
        series=${series((result) => result.ttft_ms?.p50 ?? null)}
      />
      <${Chart}
        title="Time per output token, p50"
        times=${times}
        unit="ms"
        series=${series((result) => result.tpot_ms?.p50 ?? null)}
      />
    </div>
  `;
}

function ByVersion({ versions, adapter }) {
  const columns = [
    {
      key: "version",
      title: "Version",
      render: ({ version }) => html`
        v${version} ${version === adapter.version && html`<${Badge} tone="info">current<//>`}
      `,
    },
    { key: "num_requests", title: "Requests", format: "count", total: true },
    { key: "failed", title: "Failed", format: "percent" },
    { key: "ttft", title: "First token, p50", format: "ms" },
    { key: "tpot", title: "Per token, p50", format: "ms" },
    { key: "input_tokens", title: "Input", format: "tokens", total: true },
    { key: "output_tokens", title: "Output", format: "tokens", total: true },
    { key: "cost_nanos", title: "Cost", format: "money", total: true },
  ];
  const href = () => `/admin/requests?adapter=${encodeURIComponent(adapter.id)}`;
  return html`
    <${Table}
      name="by"
      label="Traffic by version"
      columns=${columns}
      rows=${versions}
      rowKey=${({ version }) => version}
      href=${href}
      sorted="-version"
      filter=${false}
    />
    <p class="hint">Percentiles of the range are the mean of its buckets', weighted by their requests.</p>
  `;
}

const SUMS = ["num_requests", "num_errors", "input_tokens", "output_tokens", "cost_nanos"];

/** Return a row for each version, with its results by bucket as `values`. */
export function byVersion(buckets) {
  const rows = new Map();
  buckets.forEach(({ results }, place) => {
    for (const result of results) {
      const version = result.adapter_version;
      if (version === null || version === undefined) continue;
      if (!rows.has(version))
        rows.set(version, { version, values: Array(buckets.length).fill(null), currency: result.currency });
      rows.get(version).values[place] = result;
    }
  });
  return [...rows.values()]
    .sort((a, b) => b.version - a.version)
    .map((row) => {
      const sums = Object.fromEntries(
        SUMS.map((name) => [name, row.values.reduce((sum, result) => sum + (result?.[name] ?? 0), 0)]),
      );
      return {
        ...row,
        ...sums,
        failed: sums.num_requests ? sums.num_errors / sums.num_requests : null,
        ttft: weighted(row.values, "ttft_ms"),
        tpot: weighted(row.values, "tpot_ms"),
      };
    });
}

function weighted(values, name) {
  const known = values.filter((result) => result?.[name]);
  const requests = known.reduce((sum, result) => sum + result.num_requests, 0);
  return requests ? known.reduce((sum, result) => sum + result[name].p50 * result.num_requests, 0) / requests : null;
}

const command = ({ model }) => `curl ${window.location.origin}/v1/chat/completions \\
  -H "Authorization: Bearer $LORIKEET_API_KEY" -H "Content-Type: application/json" \\
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`;

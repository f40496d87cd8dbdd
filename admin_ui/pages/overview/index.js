// The overview, which is the first page: requests, tokens, cost, errors, latencies and engines, now and lately, and
// what needs a person.

import { Button } from "../../components/button.js";
import { Chart } from "../../components/charts/chart.js";
import { Empty, ErrorBox, Skeleton } from "../../components/feedback.js";
import { Money, Num } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Stat, Stats } from "../../components/charts/stat.js";
import { column, numCompleted, summed, sumOf, useBuckets } from "../../lib/buckets.js";
import { useApi } from "../../lib/data.js";
import { count } from "../../lib/format/format.js";
import { html, useMemo } from "../../lib/html.js";
import { useProjectId, useProjectNames } from "../../lib/projects.js";
import { can, useSession } from "../../lib/session.js";
import { useRange } from "../../lib/format/time.js";
import { Alerts } from "./alerts.js";
import { Engines } from "./engines.js";
import { Top } from "./top.js";

export default function Overview() {
  const range = useRange();
  const projectId = useProjectId();
  const names = useProjectNames();
  const mayCount = can("billing.read", projectId);
  const traffic = useBuckets(mayCount ? "/traffic" : null, range, { project_ids: projectId ? [projectId] : [] });
  const rows = useMemo(() => (traffic.data ? summed(traffic.data) : undefined), [traffic.data]);
  const title = projectId ? names(projectId) : "Overview";
  return html`
    <${Page} title=${title} lead=${rows && html`<${Lead} rows=${rows} range=${range} />`}>
      <${Alerts} projectId=${projectId} />
      ${
        traffic.error &&
        !traffic.error.isMissing &&
        html`<${ErrorBox} error=${traffic.error} what="load the traffic" retry=${traffic.reload} />`
      }
      ${
        rows === undefined
          ? mayCount && !traffic.error && html`<${Skeleton} height=${132} />`
          : sumOf(rows, "num_requests") === 0
            ? html`<${NoTraffic} range=${range} />`
            : html`
              <${Numbers} rows=${rows} />
              <${Pictures} rows=${rows} />
            `
      }
      ${can("organization.read") && html`<${Engines} />`}
      ${mayCount && rows && sumOf(rows, "num_requests") > 0 && html`<${Top} range=${range} projectId=${projectId} />`}
    <//>
  `;
}

function Lead({ rows, range }) {
  const requests = sumOf(rows, "num_requests");
  if (requests === 0) return `No requests in the ${range.label.toLowerCase()}.`;
  const errors = sumOf(rows, "num_errors");
  return html`
    <b>${count(requests)}</b> ${requests === 1 ? "request" : "requests"},${" "}
    <${Num} value=${errors / requests} kind="percent" /> of them failed, in${" "}
    ${range.name ? `the ${range.label.toLowerCase()}` : range.label}.
  `;
}

function Numbers({ rows }) {
  const versions = useApi(can("billing.read") ? "/prices" : null, { limit: 1 }).data?.data;
  const lacksPrices = versions?.length === 0;
  const requests = sumOf(rows, "num_requests");
  const errors = sumOf(rows, "num_errors");
  const latest = [...rows].reverse().find(({ ttft_ms: ttft }) => ttft) ?? {};
  const currency = rows.find((row) => row.currency)?.currency;
  const percentile = (name, which) => rows.map((row) => row[name]?.[which] ?? null);
  return html`
    <${Stats}>
      <${Stat}
        title="Requests"
        value=${html`<${Num} value=${requests} />`}
        values=${column(rows, "num_requests")}
        href="/admin/requests"
      />
      <${Stat}
        title="Tokens"
        value=${html`<${Num} value=${sumOf(rows, "input_tokens") + sumOf(rows, "output_tokens")} kind="tokens" />`}
        values=${rows.map((row) => (row.input_tokens ?? 0) + (row.output_tokens ?? 0))}
        href="/admin/usage"
        color="var(--series-3)"
      />
      <${Stat}
        title="Cost"
        value=${html`<${Money} nanos=${sumOf(rows, "cost_nanos")} currency=${currency} />`}
        values=${column(rows, "cost_nanos")}
        hint=${lacksPrices && "No prices yet"}
        href=${lacksPrices && can("billing.write") ? "/admin/usage/prices" : "/admin/usage"}
        color="var(--series-2)"
      />
      <${Stat}
        title="Errors"
        value=${html`<${Num} value=${errors / requests} kind="percent" />`}
        tone=${errors / requests > 0.05 ? "bad" : ""}
        values=${column(rows, "num_errors")}
        href="/admin/requests?status=error"
        color="var(--bad-mark)"
      />
      <${Stat}
        title="First token, p50"
        value=${html`<${Num} value=${latest.ttft_ms?.p50} kind="ms" />`}
        values=${percentile("ttft_ms", "p50")}
        color="var(--series-5)"
      />
      <${Stat}
        title="Per token, p50"
        value=${html`<${Num} value=${latest.tpot_ms?.p50} kind="ms" />`}
        values=${percentile("tpot_ms", "p50")}
        color="var(--series-4)"
      />
    <//>
  `;
}

const line = (key, label, color, values) => ({ key, label, color, values });

function Pictures({ rows }) {
  const times = rows.map(({ at }) => at);
  const good = rows.map(numCompleted);
  const fresh = rows.map((row) => (row.input_tokens ?? 0) - (row.cached_tokens ?? 0));
  const of = (name, which) => rows.map((row) => row[name]?.[which] ?? null);
  return html`
    <div class="grid-2">
      <${Chart}
        title="Requests"
        kind="bars"
        times=${times}
        href="/admin/requests"
        series=${[
          line("good", "Completed", "var(--series-1)", good),
          line("cancelled", "Cancelled", "var(--series-8)", column(rows, "num_cancelled")),
          line("refused", "Refused by the engine", "var(--series-7)", column(rows, "num_refused")),
          line("errors", "Failed", "var(--bad-mark)", column(rows, "num_errors")),
        ]}
      />
      <${Chart}
        title="Tokens"
        kind="bars"
        times=${times}
        unit="tokens"
        href="/admin/usage"
        series=${[
          line("input", "Uncached input", "var(--series-3)", fresh),
          line("cached", "Cached input", "var(--series-5)", column(rows, "cached_tokens")),
          line("output", "Output", "var(--series-2)", column(rows, "output_tokens")),
        ]}
      />
      <${Chart}
        title="Time to first token"
        times=${times}
        unit="ms"
        series=${[
          line("p50", "p50", "var(--series-1)", of("ttft_ms", "p50")),
          line("p90", "p90", "var(--series-2)", of("ttft_ms", "p90")),
          line("p99", "p99", "var(--series-4)", of("ttft_ms", "p99")),
        ]}
      />
      <${Chart}
        title="Time per output token"
        times=${times}
        unit="ms"
        series=${[
          line("p50", "p50", "var(--series-1)", of("tpot_ms", "p50")),
          line("p90", "p90", "var(--series-2)", of("tpot_ms", "p90")),
          line("p99", "p99", "var(--series-4)", of("tpot_ms", "p99")),
        ]}
      />
    </div>
  `;
}

function NoTraffic({ range }) {
  const { who } = useSession();
  const command = `curl ${window.location.origin}/v1/chat/completions \\
  -H "Authorization: Bearer $LORIKEET_API_KEY" -H "Content-Type: application/json" \\
  -d '{"model": "${who.model}", "messages": [{"role": "user", "content": "Hello"}]}'`;
  return html`
    <${Empty}
      icon="bolt"
      title="No requests in the ${range.label.toLowerCase()}"
      command=${command}
      action=${html`<${Button} kind="primary" icon="playground" href="/admin/playground">
          Open the playground
        <//>`}
    >
      The first one shows here within seconds. A key comes from a tenant's page.
    <//>
  `;
}

// The charts of a tenant's traffic.

import { Button } from "../../../components/button.js";
import { Chart } from "../../../components/charts/chart.js";
import { Empty, ErrorBox, Skeleton } from "../../../components/feedback.js";
import { Money, Num } from "../../../components/numbers.js";
import { Stat, Stats } from "../../../components/charts/stat.js";
import { column, numCompleted, summed, sumOf, useBuckets } from "../../../lib/buckets.js";
import { html, useMemo } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { useRange } from "../../../lib/format/time.js";
import { useCostNote } from "../../usage/cost_note.js";

export function Traffic({ id, spend }) {
  const range = useRange();
  const traffic = useBuckets(pathOf(id, "/traffic"), range);
  const rows = useMemo(() => traffic.data && summed(traffic.data), [traffic.data]);
  const costNote = useCostNote(rows);
  const failed =
    traffic.error &&
    !traffic.error.isMissing &&
    html`<${ErrorBox} error=${traffic.error} what="load the traffic" retry=${traffic.reload} />`;
  if (!rows) return traffic.error ? failed : html`<${Skeleton} height=${132} />`;
  const requests = sumOf(rows, "num_requests");
  if (requests === 0)
    return html`
      ${failed}
      <${NoTraffic} id=${id} range=${range} />
    `;
  const errors = sumOf(rows, "num_errors");
  const latest = [...rows].reverse().find(({ ttft_ms: ttft }) => ttft);
  const times = rows.map(({ at }) => at);
  const of = (page, more = "") => `/admin/${page}?project=${id}${more}`;
  const done = rows.map(numCompleted);
  const series = (key, label, color, values) => ({ key, label, color, values });
  return html`
    ${failed}
    <${Stats}>
      <${Stat}
        title="Requests"
        value=${html`<${Num} value=${requests} />`}
        values=${column(rows, "num_requests")}
        href=${of("requests")}
      />
      <${Stat}
        title="Errors"
        value=${html`<${Num} value=${errors / requests} kind="percent" />`}
        tone=${errors / requests > 0.05 ? "bad" : ""}
        values=${column(rows, "num_errors")}
        color="var(--bad-mark)"
        href=${of("requests", "&status=error")}
      />
      <${Stat}
        title="Tokens"
        value=${html`<${Num} value=${sumOf(rows, "input_tokens") + sumOf(rows, "output_tokens")} kind="tokens" />`}
        values=${rows.map((row) => (row.input_tokens ?? 0) + (row.output_tokens ?? 0))}
        color="var(--series-3)"
        href=${of("usage")}
      />
      <${Stat}
        title="Cost"
        value=${html`<${Money} nanos=${sumOf(rows, "cost_nanos")} currency=${spend.currency} />`}
        values=${column(rows, "cost_nanos")}
        color="var(--series-2)"
        href=${of("usage")}
      />
      <${Stat}
        title="First token, p50"
        value=${html`<${Num} value=${latest?.ttft_ms?.p50} kind="ms" />`}
        values=${rows.map((row) => row.ttft_ms?.p50 ?? null)}
        color="var(--series-5)"
        href=${of("requests")}
      />
    <//>
    <div class="grid-2">
      <${Chart}
        title="Requests"
        kind="bars"
        times=${times}
        href=${of("requests")}
        series=${[
          series("good", "Completed", "var(--series-1)", done),
          series("cancelled", "Cancelled", "var(--series-8)", column(rows, "num_cancelled")),
          series("refused", "Refused by the engine", "var(--series-7)", column(rows, "num_refused")),
          series("errors", "Failed", "var(--bad-mark)", column(rows, "num_errors")),
        ]}
      />
      <${Chart}
        title="Cost"
        kind="bars"
        unit="money"
        currency=${spend.currency}
        times=${times}
        href=${of("usage")}
        series=${[series("cost", "Cost", "var(--series-2)", column(rows, "cost_nanos"))]}
        note=${costNote}
      />
    </div>
  `;
}

function NoTraffic({ id, range }) {
  return html`
    <${Empty}
      icon="bolt"
      title="No requests in the ${range.label.toLowerCase()}"
      action=${html`<${Button} kind="primary" icon="playground" href="/admin/playground?project=${id}">
          Open the playground
        <//>`}
    >
      The first one shows here within seconds.
    <//>
  `;
}

// One tenant at a glance: how its traffic goes, what it cost, what is close to a limit, its adapters and keys.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Chart } from "../../components/charts/chart.js";
import { Empty, ErrorBox, Skeleton } from "../../components/feedback.js";
import { Gauge } from "../../components/charts/gauge.js";
import { Money, Num, Time } from "../../components/numbers.js";
import { Section } from "../../components/page.js";
import { Stat, Stats } from "../../components/charts/stat.js";
import { column, summed, sumOf, useBuckets } from "../../lib/buckets.js";
import { useApi } from "../../lib/data.js";
import { money, plural } from "../../lib/format/format.js";
import { html, useMemo } from "../../lib/html.js";
import { pathOf, useMonthlyCost } from "../../lib/projects_api.js";
import { to } from "../../lib/router.js";
import { useRange } from "../../lib/format/time.js";
import { useCostNote } from "../usage/cost_note.js";
import { Alerts } from "../overview/alerts.js";
import { Tenant } from "./frame.js";
import { isInUse, stateOf } from "./keys/state.js";
import { shareOf, shownAs, titleOf } from "./limits/words.js";

const NUM_SHOWN = 5;

export default function Overview({ params }) {
  const id = params.project;
  const spend = useMonthlyCost(id);
  const lead = (project) =>
    project.status === "active" &&
    spend.nanos !== undefined &&
    html`<b>${money(spend.nanos, spend.currency)}</b> so far this month.`;
  return html`
    <${Tenant} params=${params} lead=${lead}>
      ${(_project, may) => html`
        <${Alerts} projectId=${id} />
        ${may("billing.read") && html`<${Traffic} id=${id} spend=${spend} />`}
        <div class="grid-3">
          ${may("limits.read") && html`<${Limits} id=${id} may=${may} currency=${spend.currency} />`}
          ${may("adapters.read") && html`<${Adapters} id=${id} may=${may} />`}
          ${may("keys.read") && html`<${Keys} id=${id} may=${may} />`}
        </div>
      `}
    <//>
  `;
}

function Traffic({ id, spend }) {
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
  const done = rows.map((row) => (row.num_requests ?? 0) - (row.num_errors ?? 0) - (row.num_cancelled ?? 0));
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

/** A card with the first few of a list and a link to all. */
function Few({ title, href, list, empty, children }) {
  const items = list.data?.data;
  return html`
    <${Section}
      card
      title=${html`<a class="quiet-link" href=${href}>
          ${title}
        </a>`}
    >
      <${ErrorBox} error=${list.error} retry=${list.reload} />
      ${
        items === undefined
          ? !list.error && html`<${Skeleton} lines=${3} />`
          : items.length === 0
            ? html`<p class="hint">${empty}</p>`
            : (children(items))
      }
    <//>
  `;
}

function Limits({ id, may, currency }) {
  const href = to("tenants", id, "limits");
  const list = useApi(pathOf(id, "/limits"), { limit: 100 });
  const empty = html`
    None: this tenant may use all there is. ${may("limits.write") && html`<a href="${href}?new=1">Set one</a>`}
  `;
  return html`
    <${Few} title="Limits" href=${href} list=${list} empty=${empty}>
      ${(limits) => html`
        <div class="stack">
          ${[...limits]
            .sort((a, b) => shareOf(b) - shareOf(a))
            .slice(0, NUM_SHOWN)
            .map(
              (limit) => html`
                <${Gauge}
                  isLimit
                  key=${limit.id}
                  label=${titleOf(limit)}
                  used=${limit.used}
                  reserved=${limit.reserved}
                  max=${limit.max}
                  shown=${shownAs(limit.unit, currency)}
                />
              `,
            )}
        </div>
      `}
    <//>
  `;
}

function Adapters({ id, may }) {
  const href = to("tenants", id, "adapters");
  const list = useApi(pathOf(id, "/adapters"), { limit: NUM_SHOWN });
  const empty = html`
    None yet. ${may("adapters.write") && html`<a href="/admin/adapters?project=${id}&add=file">Upload one</a>`}
  `;
  return html`
    <${Few} title="Adapters" href=${href} list=${list} empty=${empty}>
      ${(adapters) => html`
        <div class="state-list">
          ${adapters.map(
            ({ name, version, rank }) => html`
              <a class="state-row" key=${name} href=${to("adapters", id, name)}>
                <span class="ellipsis">${name}</span>
                <span class="faint">
                  ${version === null ? "no version yet" : `version ${version}, rank ${rank}`}
                </span>
              </a>
            `,
          )}
        </div>
      `}
    <//>
  `;
}

function Keys({ id, may }) {
  const href = to("tenants", id, "keys");
  const list = useApi(pathOf(id, "/api_keys"), { limit: 100 });
  const empty = html`None yet. ${may("keys.write") && html`<a href=${href}>Create one</a>`}`;
  return html`
    <${Few} title="Keys" href=${href} list=${list} empty=${empty}>
      ${(all) => {
        const keys = all.filter(isInUse);
        if (keys.length === 0) return html`<p class="hint">None in use.</p>`;
        return html`
          <div class="state-list">
            ${keys.slice(0, NUM_SHOWN).map(
              (key) => html`
                <a class="state-row" key=${key.id} href="${href}?key=${key.id}">
                  <span class="ellipsis">${key.name}</span>
                  ${
                    stateOf(key) === "active"
                      ? html`
                        <span class="faint">
                          <${Time} at=${key.last_used_at} relative none="not used yet" />
                        </span>
                      `
                      : html`<${Badge} dot>${stateOf(key)}<//>`
                  }
                </a>
              `,
            )}
            ${
              keys.length > NUM_SHOWN &&
              html`
                <a class="state-row" href=${href}>
                  ${plural(keys.length - NUM_SHOWN, "more key", "more keys")}
                </a>
              `
            }
          </div>
        `;
      }}
    <//>
  `;
}

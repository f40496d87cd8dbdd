// The list of all tenants: their usage in this month, and the limits that are almost used up.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Money, Num } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { Choice } from "../../components/tabs.js";
import { useApi, useList } from "../../lib/data.js";
import { money, plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { useShortcut } from "../../lib/rules/keys.js";
import { useProjectId } from "../../lib/projects.js";
import { useMonthlyCost } from "../../lib/projects_api.js";
import { here, setQuery, to, useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { now } from "../../lib/format/time.js";
import { CreateTenant } from "./create.js";

const STATES = [
  ["live", "Live"],
  ["active", "Active"],
  ["suspended", "Suspended"],
  ["archived", "Archived"],
];
const MAX_TOP = 100;
const HOUR_S = 3600;

export default function Tenants() {
  const [state, setState] = useQuery("state", "live");
  const [making] = useQuery("new");
  const list = useList("/projects", { include_archived: state === "archived" ? "true" : null }, { limit: 100 });
  const month = useMonth();
  const spend = useMonthlyCost(null);
  const alerts = useApi("/alerts").data?.data ?? [];
  const rows = list.items
    ?.filter(({ status }) => status === state || (state === "live" && status !== "archived"))
    .map((project) => ({
      ...project,
      ...month.of(project.id),
      alerts: alerts.filter(({ project_id: id, code }) => id === project.id && /^(limit|balance)_/.test(code)),
    }));
  const open = () => setQuery({ new: 1 });
  const mayCreate = can("projects.write");
  useShortcut("n", "New tenant", () => mayCreate && open());
  return html`
    <${Page}
      title="Tenants"
      lead=${rows && html`<${Lead} rows=${rows} state=${state} hasMore=${list.hasMore} spend=${spend} />`}
      actions=${
        mayCreate &&
        html`
          <${Button} kind="primary" icon="plus" onClick=${open}>
            New tenant
          <//>
        `
      }
    >
      <${Table}
        label="Tenants"
        columns=${columnsFor(month)}
        rows=${rows}
        current=${useProjectId()}
        href=${({ id }) => to("tenants", id)}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        tools=${html`<${Choice} label="State" value=${state} onValue=${setState} options=${STATES} />`}
        empty=${html`<${NoTenant}
            state=${state}
            action=${
              mayCreate &&
              html`
                <${Button} kind="primary" icon="plus" onClick=${open}>
                  New tenant
                <//>
              `
            }
          />`}
      />
      ${making && mayCreate && html`<${CreateTenant} onClose=${() => setQuery({ new: null })} />`}
    <//>
  `;
}

function Lead({ rows, state, hasMore, spend }) {
  const near = rows.filter(({ alerts }) => alerts.length).length;
  const what = state === "live" ? "" : ` ${state}`;
  const cost =
    state === "live" && Boolean(spend.nanos) && html`, <b>${money(spend.nanos, spend.currency)}</b> this month`;
  return html`
    <b>
      ${rows.length}
      ${hasMore ? "+" : ""}
    </b>
    ${what} ${rows.length === 1 ? "tenant" : "tenants"}
    ${cost}
    ${near ? html`; <b>${near}</b> near a limit or over it` : ""}
    .
  `;
}

/**
 * Return the usage of each tenant since the first of the month in UTC. of(id): its numbers, 0 without usage, missing
 * while they are unknown.
 */
function useMonth() {
  const today = new Date(now() * 1000);
  const start = Date.UTC(today.getUTCFullYear(), today.getUTCMonth(), 1) / 1000;
  const end = Math.ceil(now() / HOUR_S) * HOUR_S;
  const top = useApi(can("billing.read") ? "/traffic/top" : null, {
    by: "project_id",
    order: "cost",
    start_time: start,
    end_time: end,
    limit: MAX_TOP,
    times: false,
  });
  const rows = top.data?.data;
  const byId = new Map((rows ?? []).map((row) => [row.id, row]));
  const none =
    rows && rows.length < MAX_TOP ? { num_requests: 0, cost_nanos: 0, currency: rows[0]?.currency, tokens: 0 } : {};
  const of = (id) => {
    const row = byId.get(id);
    return row
      ? {
          num_requests: row.num_requests,
          cost_nanos: row.cost_nanos,
          currency: row.currency,
          tokens: row.input_tokens + row.output_tokens,
        }
      : none;
  };
  return { of, isMissing: top.error?.isMissing, start, end };
}

function columnsFor({ isMissing: hide, start, end }) {
  const month = `from=${start}&to=${end}`;
  const link =
    (page, inside) =>
    ({ id, ...row }) =>
      html`
        <a class="quiet-link" href="/admin/${page}?project=${id}&${month}">
          ${inside(row)}
        </a>
      `;
  return [
    { key: "name", title: "Tenant" },
    { key: "status", title: "State", render: ({ status }) => html`<${Badge} dot>${status}<//>` },
    {
      key: "num_requests",
      hide,
      title: "Requests this month",
      format: "count",
      total: true,
      render: link("requests", (row) => html`<${Num} value=${row.num_requests} />`),
    },
    {
      key: "tokens",
      hide,
      title: "Tokens",
      format: "tokens",
      total: true,
      render: link("usage", (row) => html`<${Num} value=${row.tokens} kind="tokens" />`),
    },
    {
      key: "cost_nanos",
      hide,
      title: "Cost",
      format: "money",
      total: true,
      render: link("usage", (row) => html`<${Money} nanos=${row.cost_nanos} currency=${row.currency} />`),
    },
    {
      key: "alerts",
      title: "Limits",
      value: ({ alerts }) => alerts.length,
      csv: false,
      render: ({ id, alerts }) =>
        alerts.length
          ? html`
            <a href=${to("tenants", id, "limits")} title=${alerts.map(({ title }) => title).join("\n")}>
              <${Badge} tone=${alerts.some(({ severity }) => severity === "critical") ? "bad" : "warn"}>
                ${limitsInWords(alerts)}
              <//>
            </a>
          `
          : html`
            <a class="quiet-link faint" href=${to("tenants", id, "limits")}>
              none near its end
            </a>
          `,
    },
    { key: "created_at", title: "Created", format: "time" },
  ];
}

function limitsInWords(alerts) {
  const near = alerts.filter(({ code }) => !code.endsWith("_exhausted")).map(({ percent }) => percent);
  const numUsedUp = alerts.length - near.length;
  const fullest = `at ${near.length > 1 ? "up to " : ""}${Math.max(...near)} %`;
  return [
    numUsedUp && `${plural(numUsedUp, "limit")} used up`,
    near.length && `${numUsedUp ? near.length : plural(near.length, "limit")} ${fullest}`,
  ]
    .filter(Boolean)
    .join(", ");
}

function NoTenant({ state, action }) {
  if (state !== "live")
    return html`
      <${Empty}
        icon="tenants"
        title="No ${state} tenant"
        action=${html`<${Button} href=${here({ state: null })}>Show live ones<//>`}
      />
    `;
  const command = `curl ${window.location.origin}/v1/organization/projects \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"name": "acme"}'`;
  return html`
    <${Empty} icon="tenants" title="No tenant yet" command=${command} action=${action}>
      A tenant has keys, adapters, limits and a bill of its own.
    <//>
  `;
}

// The page of credits, which tenants have paid or been given in advance: the balances of all, or one tenant's account.

import { Badge } from "../../components/badge.js";
import { Empty } from "../../components/feedback.js";
import { Money } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi, useList } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { useProjectId, useProjectNames } from "../../lib/projects.js";
import { Account } from "./account/index.js";
import { UsageTabs } from "./tabs.js";

const USAGE_LEAD =
  "Credits come before money: a closing month draws them, oldest first. Who pays in advance is refused " +
  "when the balance is used up.";

export default function Credits() {
  const projectId = useProjectId();
  return projectId ? html`<${One} key=${projectId} projectId=${projectId} />` : html`<${All} />`;
}

function All() {
  const list = useList("/projects", {}, { limit: 20 });
  const rows = list.items?.filter(({ status }) => status !== "archived");
  const columns = [
    { key: "name", title: "Tenant" },
    { key: "mode", title: "Pays", sort: false, csv: false, render: ({ id }) => html`<${Mode} id=${id} />` },
    {
      key: "balance",
      title: "Balance",
      align: "end",
      sort: false,
      csv: false,
      render: ({ id }) => html`<${Balance} id=${id} />`,
    },
    {
      key: "customer",
      title: "Stripe customer",
      sort: false,
      csv: false,
      render: ({ id }) => html`<${Customer} id=${id} />`,
    },
  ];
  return html`
    <${Page}
      title="Usage"
      lead=${USAGE_LEAD}
      tabs=${html`<${UsageTabs} />`}
    >
      <${Table}
        name="balances"
        label="Balances"
        columns=${columns}
        rows=${rows}
        href=${({ id }) => `/admin/usage/credits?project=${id}`}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        empty=${html`<${Empty} icon="tenants" title="No tenant yet" />`}
      />
    <//>
  `;
}

const useBilling = (id) => useApi(`/projects/${id}/billing`);
const nothing = html`<span class="faint">–</span>`;

function Mode({ id }) {
  const { data } = useBilling(id);
  return data ? html`<${Badge} tone=${data.mode === "prepaid" ? "info" : ""}>${data.mode}<//>` : nothing;
}

function Balance({ id }) {
  const { data } = useBilling(id);
  if (!data) return nothing;
  return data.mode === "prepaid" && data.balance_nanos <= 0
    ? html`<${Badge} tone="bad">used up<//>`
    : html`<${Money} nanos=${data.balance_nanos} currency=${data.currency} />`;
}

function Customer({ id }) {
  const { data } = useApi(`/projects/${id}/stripe_customer`);
  return data?.customer_id ? html`<code>${data.customer_id}</code>` : nothing;
}

function One({ projectId }) {
  const names = useProjectNames();
  const billing = useBilling(projectId);
  const data = billing.data;
  const lead =
    data &&
    html`
      ${names(projectId)} pays ${data.mode === "prepaid" ? "in advance" : "by invoice"}; its balance is${" "}
      <b>
        <${Money} nanos=${data.balance_nanos} currency=${data.currency} />
      </b>
      .
      ${
        data.mode === "prepaid" &&
        data.balance_nanos <= 0 &&
        html`
          ${" "}
          <b>Its requests are refused.</b>
        `
      }
    `;
  return html`
    <${Page} title="Usage" lead=${lead} tabs=${html`<${UsageTabs} />`}>
      <${Account} projectId=${projectId} name=${names(projectId)} billing=${billing} />
    <//>
  `;
}

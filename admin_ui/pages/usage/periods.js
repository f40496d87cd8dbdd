// The list of billing periods: months that are open, closed or invoiced, with their amounts. A tenant sees its
// invoices.

import { Badge } from "../../components/badge.js";
import { Empty } from "../../components/feedback.js";
import { Money } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { monthName, monthsBetween } from "../../lib/format/month.js";
import { useProjectId, useProjects } from "../../lib/projects.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { now } from "../../lib/format/time.js";
import { UsageTabs } from "./tabs.js";

export const TONE = { open: "info", closed: "warn", invoiced: "good" };

export default function Periods() {
  return can("billing.read") ? html`<${All} />` : html`<${Own} />`;
}

function All() {
  const list = useList("/periods", {}, { limit: 36 });
  const open = list.items?.find(({ state }) => state === "open");
  const waiting = list.items?.filter(({ state }) => state === "closed") ?? [];
  const lead =
    open &&
    html`
      ${monthName(open.id)} is open:${" "}
      <b>
        <${Money} nanos=${open.cost_nanos} currency=${open.currency} />
      </b>${" "}
      from ${plural(open.num_requests, "request")} so far.
      ${waiting.length > 0 && ` ${plural(waiting.length, "closed month")} without invoices.`}
    `;
  const columns = [
    { key: "id", title: "Period", render: ({ id }) => monthName(id) },
    {
      key: "state",
      title: "State",
      render: ({ state }) => html`
        <${Badge} dot tone=${TONE[state]}>
          ${state}
        <//>
      `,
    },
    { key: "num_requests", title: "Requests", format: "count", total: true },
    { key: "cost_nanos", title: "Billed", format: "money", total: true },
    { key: "closed_at", title: "Closed", format: "time" },
    { key: "invoiced_at", title: "Invoiced", format: "time" },
  ];
  return html`
    <${Page} title="Usage" lead=${lead} tabs=${html`<${UsageTabs} />`}>
      <${Table}
        name="periods"
        label="Billing periods"
        columns=${columns}
        rows=${list.items}
        href=${({ id }) => to("usage", "periods", id)}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        filter=${false}
        empty=${html`<${Empty} icon="usage" title="No billing period yet">
            The first begins with the organization.
          <//>`}
      />
      <p class="hint">
        Months of UTC are closed in their order, then invoiced. Usage of a closed month that comes late is billed in
        the next open one, as a correction.
      </p>
    <//>
  `;
}

function Own() {
  const projectId = useProjectId();
  const project = useProjects()?.find(({ id }) => id === projectId);
  const months = project && monthsBetween(project.created_at, now());
  const columns = [{ key: "id", title: "Month", render: ({ id }) => monthName(id) }];
  return html`
    <${Page}
      title="Usage"
      lead="An invoice for each month; the present one is a draft until its month is closed."
      tabs=${html`<${UsageTabs} />`}
    >
      <${Table}
        name="invoices"
        label="Invoices"
        columns=${columns}
        rows=${months?.map((id) => ({ id }))}
        href=${({ id }) => to("usage", "periods", id, projectId)}
        filter=${false}
      />
    <//>
  `;
}

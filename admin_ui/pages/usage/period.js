// The page of one billing period: its invoices, or drafts of them; and the buttons that close it and issue them.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm } from "../../components/dialog.js";
import { Empty, Notice } from "../../components/feedback.js";
import { Money, Time } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate, useApi } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { monthName } from "../../lib/format/month.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { now } from "../../lib/format/time.js";
import { TONE } from "./periods.js";

export default function Period({ params: { period } }) {
  const periods = useApi("/periods", { limit: 100 });
  const invoices = useApi(`/periods/${encodeURIComponent(period)}/invoices`);
  const [dialog, open] = useState(null);
  const [unbilled, tellUnbilled] = useState([]);
  const found = periods.data?.data.find(({ id }) => id === period);
  const mayWrite = can("billing.write") && found;
  const hasEnded = found && found.end_time <= now();
  const actions =
    mayWrite &&
    html`
      ${
        found.state === "open" &&
        html`
          <${Button}
            kind="primary"
            disabled=${!hasEnded}
            title=${hasEnded ? undefined : "The month has not ended"}
            onClick=${() => open("close")}
          >
            Close the period
          <//>
        `
      }
      ${
        found.state === "closed" &&
        html`
          <${Button} kind="primary" onClick=${() => open("issue")}>
            Issue invoices
          <//>
        `
      }
      <${Button} icon="download" href="/admin/usage/exports?kind=invoice&period=${period}">
        Export
      <//>
    `;
  return html`
    <${Page}
      title=${monthName(period)}
      crumbs=${[["Usage", "/admin/usage"], ["Periods", "/admin/usage/periods"]]}
      lead=${found && html`<${Lead} period=${found} />`}
      actions=${actions}
    >
      ${
        unbilled.length > 0 &&
        html`
          <${Notice} tone="warn" title="Stripe bills nobody for ${plural(unbilled.length, "tenant")}">
            ${unbilled.map(({ name }) => name).join(", ")}: their usage of the month has no Stripe customer, for
            good. Later months need one on their page of credits.
          <//>
        `
      }
      ${found && html`<${Meaning} period=${found} hasEnded=${hasEnded} />`}
      <${Invoices} invoices=${invoices} period=${period} />
      ${
        dialog === "close" &&
        html`
          <${Close}
            period=${found}
            onClose=${() => open(null)}
            onDone=${(closed) => tellUnbilled(closed.projects_without_customer)}
          />
        `
      }
      ${
        dialog === "issue" &&
        html`<${Issue} period=${found} number=${invoices.data?.data.length ?? 0} onClose=${() => open(null)} />`
      }
    <//>
  `;
}

function Lead({ period }) {
  return html`
    <${Badge} dot tone=${TONE[period.state]}>
      ${period.state}
    <//>${" "}
    <b>
      <${Money} nanos=${period.cost_nanos} currency=${period.currency} />
    </b>${" "}
    from ${plural(period.num_requests, "request")}.
  `;
}

function Meaning({ period, hasEnded }) {
  if (period.state === "invoiced")
    return html`
      <p class="hint">
        Closed <${Time} at=${period.closed_at} />, invoiced <${Time} at=${period.invoiced_at} />. It does not change any
        more.
      </p>
    `;
  if (period.state === "closed")
    return html`
      <${Notice} title="Closed, without invoices yet">
        Its usage does not change any more. Issuing gives each tenant's invoice its number.
      <//>
    `;
  return html`
    <${Notice} title=${hasEnded ? "The month has ended and can be closed" : "The month is running"}>
      ${
        hasEnded
          ? "Closing draws the credits and freezes its usage; invoices can then be issued. Months are " +
            "closed in their order."
          : "The invoices below are drafts: what they would be now."
      }
    <//>
  `;
}

function Invoices({ invoices, period }) {
  const columns = [
    { key: "project", title: "Tenant", value: ({ project }) => project.name },
    {
      key: "number",
      title: "Invoice",
      render: ({ number }) => (number ? html`<code>${number}</code>` : html`<${Badge}>draft<//>`),
    },
    { key: "num_requests", title: "Requests", format: "count", total: true },
    { key: "usage_nanos", title: "Usage", format: "money", total: true },
    { key: "adjustments_nanos", title: "Adjustments", format: "money", total: true },
    { key: "credit_nanos", title: "Credit", format: "money", total: true },
    { key: "due_nanos", title: "Due", format: "money", total: true },
  ];
  return html`
    <${Table}
      name="invoices"
      label="Invoices of ${monthName(period)}"
      columns=${columns}
      rows=${invoices.data?.data}
      rowKey=${({ project }) => project.id}
      sorted="-due_nanos"
      href=${({ project }) => to("usage", "periods", period, project.id)}
      error=${invoices.error}
      reload=${invoices.reload}
      loading=${invoices.loading}
      what="load the invoices"
      empty=${html`<${Empty} icon="usage" title="Nobody used anything in ${monthName(period)}" />`}
    />
  `;
}

function Close({ period, onClose, onDone }) {
  const act = async () => {
    onDone(await post(`/periods/${period.id}/close`));
    invalidate("/periods", "/projects");
    toast(`${monthName(period.id)} is closed`);
  };
  return html`
    <${Confirm}
      title="Close ${monthName(period.id)}?"
      verb="Close the period"
      name=${period.id}
      act=${act}
      onClose=${onClose}
    >
      <p>
        ${plural(period.num_requests, "request")} and${" "}
        <${Money} nanos=${period.cost_nanos} currency=${period.currency} /> become final for every tenant:
      </p>
      <ul>
        <li>credits are drawn, oldest first, and what is left of expired ones lapses;</li>
        <li>usage that comes late is billed in the next open month, as a correction;</li>
        <li>mistakes are set right by an adjustment, no more by a change of the month.</li>
      </ul>
    <//>
  `;
}

function Issue({ period, number, onClose }) {
  const act = async () => {
    await post(`/periods/${period.id}/invoices`);
    invalidate("/periods", "/projects");
    toast(`${plural(number, "invoice")} issued`);
  };
  return html`
    <${Confirm}
      title="Issue the invoices of ${monthName(period.id)}?"
      verb="Issue invoices"
      act=${act}
      onClose=${onClose}
      danger=${false}
    >
      <p>
        ${plural(number, "tenant")} get an invoice with a number and today's date. Issued invoices stay as they
        are; what is wrong in one is set right by an adjustment on a later one.
      </p>
    <//>
  `;
}

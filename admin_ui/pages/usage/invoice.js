// One tenant's invoice of one month, line by line; each line leads to the requests behind it.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty, Loaded } from "../../components/feedback.js";
import { Money, Num } from "../../components/numbers.js";
import { Facts, Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { monthName, monthSpan } from "../../lib/format/month.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { day } from "../../lib/format/time.js";
import { requestsHref } from "../requests/query.js";

const KINDS = { input: "Input", cached_input: "Cached input", output: "Output" };

export default function InvoiceView({ params: { period, project } }) {
  const path = `/projects/${encodeURIComponent(project)}/invoices/${encodeURIComponent(period)}`;
  const invoice = useApi(path);
  const data = invoice.data;
  const crumbs = [
    ["Usage", "/admin/usage"],
    ["Periods", "/admin/usage/periods"],
    can("billing.read") && [monthName(period), to("usage", "periods", period)],
  ];
  const lead =
    data &&
    html`
      ${
        data.number
          ? html`Invoice <code>${data.number}</code>, issued ${day(data.issued_at)}`
          : html`<${Badge} tone="info">draft<//> It may still change`
      }
      :${" "}
      <b>
        <${Money} nanos=${data.due_nanos} currency=${data.currency} />
      </b>${" "}
      due for ${monthName(period)}.
    `;
  const actions =
    data &&
    html`
      <${Button} icon="external" href="/v1/organization${path}?format=html" target="_blank" rel="noopener">
        Page to print
      <//>
      <${Button} icon="download" href="/admin/usage/exports?kind=invoice&period=${period}&project=${project}">
        Export
      <//>
    `;
  return html`
    <${Page} title=${data?.project.name ?? "Invoice"} crumbs=${crumbs.filter(Boolean)} lead=${lead} actions=${actions}>
      <${Loaded}
        from=${invoice}
        what="load the invoice"
        missing=${html`<${Empty} icon="usage" title="There is no invoice of ${period}">
            Billing began later, or the month has not begun.
          <//>`}
      >
        ${(found) => html`
          <${Sums} invoice=${found} />
          <${Lines} invoice=${found} />
          <${Adjustments} invoice=${found} />
        `}
      <//>
    <//>
  `;
}

function Sums({ invoice }) {
  const amount = (nanos) => html`<${Money} nanos=${nanos} currency=${invoice.currency} />`;
  return html`
    <${Section} card>
      <${Facts}
        rows=${[
          [
            "Requests",
            html`<a
              href=${requestsHref({ project: invoice.project.id, from: invoice.period_start, to: invoice.period_end })}
            >
              <${Num} value=${invoice.num_requests} />
            </a>`,
          ],
          ["Usage", amount(invoice.usage_nanos)],
          ["Adjustments", invoice.adjustments.length ? amount(invoice.adjustments_nanos) : undefined],
          ["Total", amount(invoice.total_nanos)],
          [
            "Credit",
            html`<a href="/admin/usage/credits?project=${invoice.project.id}">${amount(invoice.credit_nanos)}</a>`,
          ],
          ["Due", html`<b>${amount(invoice.due_nanos)}</b>`],
        ]}
      />
    <//>
  `;
}

function Lines({ invoice }) {
  const columns = [
    { key: "model", title: "Model", render: (line) => html`<a href=${requestsOf(invoice, line)}>${line.model}</a>` },
    {
      key: "adapter_class",
      title: "Class",
      render: ({ adapter_class: name }) => (name === "none" ? html`<span class="muted">base</span>` : name),
    },
    { key: "service_tier", title: "Tier" },
    { key: "kind", title: "Of", value: ({ kind }) => KINDS[kind] },
    { key: "num_tokens", title: "Tokens", format: "tokens" },
    {
      key: "unit_price_nanos",
      title: "Per million",
      align: "end",
      render: (line) => html`<${Money} nanos=${line.unit_price_nanos} currency=${invoice.currency} />`,
    },
    {
      key: "discount_basis_points",
      title: "Discount",
      align: "end",
      render: ({ discount_basis_points: points }) => (points ? `${points / 100} %` : "–"),
      hide: invoice.lines.every((line) => !line.discount_basis_points),
    },
    {
      key: "price_version",
      title: "Prices",
      align: "end",
      render: ({ price_version: version }) => (version ? `version ${version}` : html`<span class="faint">none</span>`),
    },
    { key: "amount_nanos", title: "Amount", format: "money", total: true },
  ];
  const rows = invoice.lines.map((line, place) => ({ ...line, place, currency: invoice.currency }));
  const own = rows.filter((line) => !line.corrects_period);
  const corrections = rows.filter((line) => line.corrects_period);
  const closed = { key: "corrects_period", title: "Of", render: ({ corrects_period: period }) => monthName(period) };
  return html`
    <${Section} title="Usage">
      <${Table}
        name="lines"
        label="Lines of the invoice"
        columns=${columns}
        rows=${own}
        rowKey=${({ place }) => place}
        filter=${own.length > 8}
        empty=${html`<${Empty} icon="usage" title="No usage in this month" />`}
      />
    <//>
    ${
      corrections.length > 0 &&
      html`
        <${Section} title="Corrections" hint="Usage of closed months that came late.">
          <${Table}
            name="corrections"
            label="Corrections"
            columns=${[closed, ...columns]}
            rows=${corrections}
            rowKey=${({ place }) => place}
            filter=${false}
          />
        <//>
      `
    }
  `;
}

function requestsOf(invoice, line) {
  const span = line.corrects_period
    ? monthSpan(line.corrects_period)
    : { start: invoice.period_start, end: invoice.period_end };
  return requestsHref({ project: invoice.project.id, model: line.model, from: span.start, to: span.end });
}

function Adjustments({ invoice }) {
  if (invoice.adjustments.length === 0) return null;
  const columns = [
    { key: "reason", title: "Reason" },
    {
      key: "corrects_period",
      title: "Corrects",
      render: ({ corrects_period: period, corrects_request_id: id }) =>
        id ? html`<a href=${to("requests", id)}>${id}</a>` : period ? monthName(period) : "–",
    },
    { key: "amount_nanos", title: "Amount", format: "money", total: true },
  ];
  return html`
    <${Section} title="Adjustments">
      <${Table}
        name="adjustments"
        label="Adjustments"
        columns=${columns}
        rows=${invoice.adjustments.map((each) => ({ ...each, currency: invoice.currency }))}
        filter=${false}
      />
    <//>
  `;
}

// One tenant's account: how it pays, its credits, its adjustments, and whom Stripe bills.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm } from "../../components/dialog.js";
import { Empty, ErrorBox, Loaded } from "../../components/feedback.js";
import { Gauge } from "../../components/charts/gauge.js";
import { Money, Time } from "../../components/numbers.js";
import { Facts, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate, useApi, useList } from "../../lib/data.js";
import { money } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { monthName } from "../../lib/format/month.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { now } from "../../lib/format/time.js";
import { Adjust, Grant, SetCustomer } from "./account_forms.js";

export function Account({ projectId, name, billing }) {
  const [dialog, open] = useState(null);
  const close = () => open(null);
  const mayWrite = can("billing.write");
  const currency = billing.data?.currency;
  const path = `/projects/${projectId}`;
  return html`
    <${Loaded} from=${billing} what="load the account">
      ${(data) => html`
        <${HowItPays} data=${data} path=${path} open=${mayWrite && open} />
        <${Credits} path=${path} currency=${currency} onGrant=${mayWrite && (() => open("grant"))} />
        <${Adjustments} path=${path} currency=${currency} onAdjust=${mayWrite && (() => open("adjust"))} />
        ${dialog === "grant" && html`<${Grant} path=${path} name=${name} currency=${currency} onClose=${close} />`}
        ${dialog === "adjust" && html`<${Adjust} path=${path} name=${name} currency=${currency} onClose=${close} />`}
        ${dialog === "customer" && html`<${SetCustomer} path=${path} name=${name} onClose=${close} />`}
        ${dialog === "mode" && html`<${ChangeMode} path=${path} name=${name} data=${data} onClose=${close} />`}
        ${dialog === "no customer" && html`<${RemoveCustomer} path=${path} name=${name} onClose=${close} />`}
      `}
    <//>
  `;
}

function HowItPays({ data, path, open }) {
  const customer = useApi(`${path}/stripe_customer`);
  const id = customer.data?.customer_id;
  return html`
    <${Section} card>
      <${Facts}
        rows=${[
          [
            "Pays",
            html`<span class="row">
              <${Badge} tone=${data.mode === "prepaid" ? "info" : ""}>${data.mode}<//>
              ${
                open &&
                html`
                  <${Button} small onClick=${() => open("mode")}>
                    ${data.mode === "prepaid" ? "Let it pay by invoice" : "Make it prepaid"}
                  <//>
                `
              }
            </span>`,
          ],
          [
            "Balance",
            html`<b>
              <${Money} nanos=${data.balance_nanos} currency=${data.currency} />
            </b>`,
          ],
          [
            "Limit",
            data.limit_id
              ? html`<a href=${to("tenants", data.project_id, "limits")}>held by a limit</a>`
              : html`<span class="faint">none: it may go below zero</span>`,
          ],
          [
            "Stripe customer",
            html`<span class="row">
              ${id ? html`<code>${id}</code>` : html`<span class="faint">none</span>`}
              ${
                open &&
                html`
                  <${Button} small onClick=${() => open("customer")}>
                    ${id ? "Change" : "Set"}
                  <//>
                `
              }
              ${
                open &&
                id &&
                html`
                  <${Button}
                    small
                    kind="quiet"
                    icon="trash"
                    label="Remove the Stripe customer"
                    onClick=${() => open("no customer")}
                  />
                `
              }
            </span>`,
          ],
        ]}
      />
      <${ErrorBox} error=${customer.error} what="load the Stripe customer" retry=${customer.reload} />
    <//>
  `;
}

/** What is left of one: nothing of a lapsed one. */
const leftOf = (credit) => credit.amount_nanos - credit.drawn_nanos - (credit.lapsed_nanos ?? 0);

function stateOf(credit) {
  if (credit.lapsed_nanos !== null || (credit.expires_at && credit.expires_at <= now())) return "expired";
  return leftOf(credit) <= 0 ? "drawn" : "active";
}

function Credits({ path, currency, onGrant }) {
  const list = useList(`${path}/credits`, {}, { limit: 100 });
  const rows = list.items?.map((credit) => ({ ...credit, currency }));
  const columns = [
    { key: "reason", title: "Reason" },
    { key: "state", title: "State", value: stateOf, render: (credit) => html`<${Badge} dot>${stateOf(credit)}<//>` },
    { key: "created_at", title: "Granted", format: "time" },
    { key: "expires_at", title: "Expires", render: ({ expires_at: at }) => html`<${Time} at=${at} none="never" />` },
    { key: "amount_nanos", title: "Amount", format: "money", total: true },
    { key: "drawn_nanos", title: "Drawn", format: "money", total: true },
    {
      key: "left",
      title: "Left",
      format: "money",
      value: leftOf,
      total: true,
      render: (credit) => html`
        <${Gauge}
          compact
          label="Drawn of ${credit.reason}"
          used=${credit.amount_nanos - leftOf(credit)}
          max=${credit.amount_nanos}
          shown=${(value) => money(value, currency)}
          warn=${2}
          bad=${2}
        />
        <${Money} nanos=${leftOf(credit)} currency=${currency} />
      `,
    },
  ];
  const command = `curl ${window.location.origin}/v1/organization${path}/credits \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"amount_nanos": 10000000000, "reason": "Welcome"}'`;
  return html`
    <${Section}
      title="Credits"
      hint="Drawn when a month is closed, the oldest first."
      actions=${
        onGrant &&
        html`
          <${Button} kind="primary" icon="plus" onClick=${onGrant}>
            Grant credit
          <//>
        `
      }
    >
      <${Table}
        name="credits"
        label="Credits"
        columns=${columns}
        rows=${rows}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        filter=${false}
        empty=${html`<${Empty} icon="usage" title="No credits" command=${onGrant ? command : undefined}>
            A credit pays for usage before the invoice does: what was paid in advance, or a gift.
          <//>`}
      />
    <//>
  `;
}

function Adjustments({ path, currency, onAdjust }) {
  const list = useList(`${path}/adjustments`, {}, { limit: 100 });
  const rows = list.items?.map((each) => ({ ...each, currency }));
  const columns = [
    { key: "reason", title: "Reason" },
    { key: "created_at", title: "Made", format: "time" },
    { key: "period", title: "Billed in", render: ({ period }) => monthName(period) },
    {
      key: "corrects",
      title: "Corrects",
      value: (each) => each.corrects_request_id ?? each.corrects_period ?? "",
      render: (each) => html`<${Corrected} of=${each} />`,
    },
    { key: "cost_nanos", title: "Amount", format: "money", total: true },
  ];
  return html`
    <${Section}
      title="Adjustments"
      hint="Charges and refunds by hand, on the invoice of the first open month."
      actions=${
        onAdjust &&
        html`
          <${Button} icon="plus" onClick=${onAdjust}>
            Adjust
          <//>
        `
      }
    >
      <${Table}
        name="adjustments"
        label="Adjustments"
        columns=${columns}
        rows=${rows}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        filter=${false}
        empty=${html`<${Empty} icon="usage" title="No adjustments">
            Set a mistake of a closed month right here: the month itself does not change.
          <//>`}
      />
    <//>
  `;
}

function Corrected({ of }) {
  if (of.corrects_request_id)
    return html`<a href=${to("requests", of.corrects_request_id)}>${of.corrects_request_id}</a>`;
  return of.corrects_period ? monthName(of.corrects_period) : html`<span class="faint">–</span>`;
}

function ChangeMode({ path, name, data, onClose }) {
  const mode = data.mode === "prepaid" ? "postpaid" : "prepaid";
  const act = async () => {
    await post(`${path}/billing`, { mode });
    invalidate(`${path}/billing`, `${path}/limits`);
    toast(mode === "prepaid" ? `${name} pays in advance` : `${name} pays by invoice`);
  };
  if (mode === "postpaid") {
    return html`
      <${Confirm}
        title="Let ${name} pay by invoice?"
        verb="Pay by invoice"
        act=${act}
        onClose=${onClose}
        danger=${false}
      >
        <p>Its balance stops no request any more; what goes beyond its credits comes on the invoice.</p>
      <//>
    `;
  }
  return html`
    <${Confirm}
      title="Make ${name} prepaid?"
      verb="Make it prepaid"
      act=${act}
      onClose=${onClose}
      danger=${data.balance_nanos <= 0}
    >
      <p>
        Requests are refused when the balance is used up; running ones go on to their end.
        ${
          data.balance_nanos <= 0 &&
          html`
            ${" "}
            <b>
              Its balance is <${Money} nanos=${data.balance_nanos} currency=${data.currency} />: all its requests are
              refused from now on, until credit is granted.
            </b>
          `
        }
      </p>
    <//>
  `;
}

function RemoveCustomer({ path, name, onClose }) {
  const act = async () => {
    await del(`${path}/stripe_customer`);
    invalidate(`${path}/stripe_customer`);
    toast(`${name} has no Stripe customer`);
  };
  return html`
    <${Confirm} title="Remove the Stripe customer of ${name}?" verb="Remove" act=${act} onClose=${onClose}>
      <p>
        Meter events of ${name} name nobody from then on: Stripe does not bill its usage. Invoices here go on as
        before.
      </p>
    <//>
  `;
}

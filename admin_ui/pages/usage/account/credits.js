// The list of a tenant's credits, each with the rest of its amount.

import { Badge } from "../../../components/badge.js";
import { Button } from "../../../components/button.js";
import { Empty } from "../../../components/feedback.js";
import { Gauge } from "../../../components/charts/gauge.js";
import { Money, Time } from "../../../components/numbers.js";
import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { useList } from "../../../lib/data.js";
import { money } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { now } from "../../../lib/format/time.js";

/** Return what is left of a credit: nothing if it has lapsed. */
const leftOf = (credit) => credit.amount_nanos - credit.drawn_nanos - (credit.lapsed_nanos ?? 0);

function stateOf(credit) {
  if (credit.lapsed_nanos !== null || (credit.expires_at && credit.expires_at <= now())) return "expired";
  return leftOf(credit) <= 0 ? "drawn" : "active";
}

export function Credits({ path, currency, onGrant }) {
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

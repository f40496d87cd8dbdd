// The list of a tenant's adjustments: charges and refunds that the operator has made.

import { Button } from "../../../components/button.js";
import { Empty } from "../../../components/feedback.js";
import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { useList } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { monthName } from "../../../lib/format/month.js";
import { to } from "../../../lib/router.js";

export function Adjustments({ path, currency, onAdjust }) {
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

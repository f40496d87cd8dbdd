// The comparison of the ledger with the engines' counts, and the journals that were lost with their gateways.

import { Badge } from "../../components/badge.js";
import { Button, Code } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Empty, Loaded, Notice } from "../../components/feedback.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Num } from "../../components/numbers.js";
import { Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { given } from "../../lib/rules/checks.js";
import { invalidate, useApi } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { can } from "../../lib/session.js";
import { short } from "../../lib/format/time.js";
import { SystemTabs } from "./tabs.js";

const ENGINES_AND_THE_LEDGER_HINT =
  "Tokens of requests that have ended, since each engine started. " + "On its way is what differs for some seconds.";

const EVERY_MS = 10_000;

export default function ReconciliationView() {
  const found = useApi("/reconciliation", {}, { every: EVERY_MS });
  const [lost, writeOff] = useState(null);
  return html`
    <${Page} title="System" lead=${found.data && html`<${Lead} data=${found.data} />`} tabs=${html`<${SystemTabs} />`}>
      <${Loaded} from=${found} what="reconcile">
        ${(data) => html`
          ${
            data.lost_journals.length > 0 &&
            html`
              <${Notice} tone="bad" title="Usage is in journals of gateways that are gone">
                Start such a gateway again with its data folder: its journal is replayed and everything is billed once.
                Only if its disk is gone, write the journal off.
              <//>
            `
          }
          <${Section}
            title="Engines and the ledger"
            hint=${ENGINES_AND_THE_LEDGER_HINT}
          >
            <${Engines} rows=${data.engines} />
          <//>
          <${Section} title="Lost journals">
            <${Journals} rows=${data.lost_journals} onWriteOff=${can("billing.write") && writeOff} />
          <//>
        `}
      <//>
      ${lost && html`<${WriteOff} journal=${lost} onClose=${() => writeOff(null)} />`}
    <//>
  `;
}

function Lead({ data }) {
  const open = data.lost_journals.reduce((sum, { open_requests: number }) => sum + number, 0);
  const missing = data.engines.reduce((sum, each) => sum + each.difference_tokens, 0);
  const dropped = data.engines.reduce((sum, each) => sum + each.num_dropped, 0);
  if (open || dropped) return html`<b>${plural(open + dropped, "request")}</b> may stay unbilled.`;
  return missing
    ? html`
      <b>
        <${Num} value=${missing} kind="tokens" /> tokens
      </b>${" "}
      are on their way to the ledger.
    `
    : "Every token that an engine counted is in the ledger.";
}

function Engines({ rows }) {
  const columns = [
    { key: "model", title: "Model" },
    { key: "engine_id", title: "Engine", render: ({ engine_id: id }) => html`<${Code} text=${id} what="engine id" />` },
    {
      key: "ended",
      title: "Counted",
      format: "tokens",
      value: (row) => row.ended_prompt_tokens + row.ended_completion_tokens,
      total: true,
    },
    {
      key: "ledger",
      title: "In the ledger",
      format: "tokens",
      value: (row) => row.ledger_prompt_tokens + row.ledger_completion_tokens,
      total: true,
    },
    {
      key: "difference_tokens",
      title: "Difference",
      align: "end",
      total: (all) => all.reduce((sum, row) => sum + row.difference_tokens, 0),
      render: ({ difference_tokens: tokens }) =>
        tokens === 0
          ? html`<${Badge} tone="good">none<//>`
          : html`
            <${Badge} tone="warn">
              <${Num} value=${tokens} kind="tokens" />
            <//>
          `,
    },
    { key: "num_unacknowledged", title: "Not on disk yet", format: "count" },
    {
      key: "num_dropped",
      title: "Dropped",
      align: "end",
      render: ({ num_dropped: number }) => (number ? html`<${Badge} tone="bad">${number}<//>` : "0"),
    },
  ];
  return html`
    <${Table}
      name="engines"
      label="Engines and the ledger"
      columns=${columns}
      rows=${rows}
      rowKey=${(row) => row.engine_id}
      filter=${false}
      empty=${html`<${Empty} icon="system" title="No engine of its own counts tokens here">
          Backends that others run are billed by what they answer.
        <//>`}
    />
  `;
}

function Journals({ rows, onWriteOff }) {
  const columns = [
    { key: "id", title: "Journal", render: ({ id }) => html`<${Code} text=${id} what="journal id" />` },
    {
      key: "folder",
      title: "Machine and folder",
      render: ({ folder }) =>
        folder
          ? html`<${Code} text=${folder} what="place of the journal" />`
          : html`<span class="faint">not told</span>`,
    },
    { key: "open_requests", title: "Requests without a bill", format: "count", total: true },
    { key: "heard_at", title: "Gateway last heard of", format: "time" },
    {
      key: "act",
      title: "",
      csv: false,
      class: "shrink",
      hide: !onWriteOff,
      render: (row) => html`
        <${Button} small kind="danger" onClick=${() => onWriteOff(row)}>
          Write off
        <//>
      `,
    },
  ];
  return html`
    <${Table}
      name="journals"
      label="Lost journals"
      columns=${columns}
      rows=${rows}
      filter=${false}
      empty=${html`<${Empty} icon="check" title="No journal is lost">
          A gateway that ends without its journal being read shows here; periods wait for it.
        <//>`}
    />
  `;
}

function WriteOff({ journal, onClose }) {
  const form = useForm(
    { reason: "" },
    async ({ reason }) => {
      await post(`/reconciliation/lost_journals/${encodeURIComponent(journal.id)}/write_off`, {
        reason: reason.trim(),
      });
      invalidate("/reconciliation", "/alerts");
      toast("The journal is written off");
      onClose();
    },
    ({ reason }) => ({ reason: given(reason, "Say why: it is kept in the audit log.") }),
  );
  return html`
    <${Dialog} title="Write off this journal?" onClose=${onClose}>
      <${Form} form=${form} verb="Write off" what="write it off" danger onCancel=${onClose}>
        <div class="prose">
          <p>
            <b>${plural(journal.open_requests, "request")}</b> of the gateway that was last heard of at${" "}
            ${short(journal.heard_at)} stay unbilled, and no longer hold up the closing of a period. Should the journal
            turn up after all, they are billed.
          </p>
        </div>
        <${TextField}
          label="Reason"
          hint="Kept in the audit log."
          placeholder="The disk of gateway-2 was lost"
          ...${form.bind("reason")}
        />
      <//>
    <//>
  `;
}

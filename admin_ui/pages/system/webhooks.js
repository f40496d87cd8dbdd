// The list of webhooks: URLs that the server calls when a limit or an alert is reached.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty, Notice } from "../../components/feedback.js";
import { Form, Select, TextField, useForm } from "../../components/form.js";
import { Time } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Secret } from "../../components/secret.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { webAddress } from "../../lib/rules/checks.js";
import { invalidate, useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { can } from "../../lib/session.js";
import { SystemTabs } from "./tabs.js";

const ALERTS = ["limit.threshold_reached", "experiment.paused"];
const RESPONSES = ["completed", "incomplete", "failed", "cancelled"].map((status) => `response.${status}`);
const BATCHES = ["completed", "failed", "expired", "cancelled"].map((status) => `batch.${status}`);
const EVENTS = {
  alerts: ALERTS,
  responses: RESPONSES,
  batches: BATCHES,
  all: [...ALERTS, ...RESPONSES, ...BATCHES],
};

/** Return a webhook's state by its last message; a delivery may have followed a failure. */
export function stateOf({ last_delivered_at: delivered, last_failed_at: failed }) {
  if (!delivered && !failed) return "not called yet";
  return (failed ?? 0) > (delivered ?? 0) ? "failed" : "ok";
}

export default function Webhooks() {
  const list = useList("/webhooks", {}, { limit: 100 });
  const [act, setAct] = useState(null);
  const close = () => setAct(null);
  const mayWrite = can("limits.write");
  const add =
    mayWrite &&
    html`
      <${Button} kind="primary" icon="plus" onClick=${() => setAct({ add: true })}>
        New webhook
      <//>
    `;
  const columns = [
    { key: "url", title: "Address", render: ({ url }) => html`<code>${url}</code>` },
    {
      key: "events",
      title: "Called for",
      sort: false,
      value: ({ events }) => events.join(" "),
      render: ({ events }) => html`<small>${events.join(", ")}</small>`,
    },
    {
      key: "state",
      title: "State",
      value: stateOf,
      render: (row) => html`
        <${Badge} dot tone=${{ ok: "good", failed: "bad" }[stateOf(row)]}>
          ${stateOf(row)}
        <//>
      `,
    },
    {
      key: "last_delivered_at",
      title: "Last delivered",
      render: ({ last_delivered_at: at }) => html`<${Time} at=${at} relative />`,
    },
    {
      key: "last_failed_at",
      title: "Last failed",
      render: ({ last_failed_at: at, last_error: error }) => html`
        <span>
          <${Time} at=${at} relative />
          ${
            error &&
            html`
              <br />
              <small class="faint">${error}</small>
            `
          }
        </span>
      `,
    },
    { key: "created_at", title: "Created", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !mayWrite,
      render: (row) => html`
        <${Button}
          kind="quiet"
          small
          icon="trash"
          label="Remove ${row.url}"
          onClick=${() => setAct({ remove: row })}
        />
      `,
    },
  ];
  return html`
    <${Page}
      title="System"
      tabs=${html`<${SystemTabs} />`}
      lead=${list.items && html`<${Lead} rows=${list.items} />`}
      actions=${add}
    >
      <${Table}
        label="Webhooks"
        columns=${columns}
        rows=${list.items}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        filter=${false}
        empty=${html`<${Empty} icon="bolt" title="Nobody is told" action=${add} command=${command()}>
            A webhook is called when a limit or a spend alert is reached, with a signed message.
          <//>`}
      />
      ${act?.add && html`<${NewWebhook} onMade=${(made) => setAct({ made })} onClose=${close} />`}
      ${
        act?.made &&
        html`
          <${Dialog}
            title="The webhook is set"
            onClose=${close}
            locked
            footer=${html`<${Button} kind="primary" onClick=${close}>
                I have stored it
              <//>`}
          >
            <div class="stack">
              <p>
                Messages to <code>${act.made.url}</code> are signed with this secret, as Standard Webhooks are:
                verify each.
              </p>
              <${Notice} tone="warn" title="This secret is shown once">
                Store it where the receiver reads it.
              <//>
              <div class="field">
                <span class="label">Signing secret</span>
                <${Secret} value=${act.made.secret} label="Signing secret" />
              </div>
            </div>
          <//>
        `
      }
      ${
        act?.remove &&
        html`
          <${Confirm}
            title="Remove this webhook?"
            verb="Remove webhook"
            onClose=${close}
            act=${async () => {
              await del(`/webhooks/${act.remove.id}`);
              invalidate("/webhooks");
              toast("The webhook is removed");
            }}
          >
            <p>
              <code>${act.remove.url}</code> is no longer called when a limit is reached. A new one for the
              same address gets another secret.
            </p>
          <//>
        `
      }
    <//>
  `;
}

function Lead({ rows }) {
  if (rows.length === 0) return "Nobody is told when a limit is reached.";
  const failing = rows.filter((row) => stateOf(row) === "failed").length;
  return failing
    ? html`<b>${plural(failing, "webhook")}</b> of ${rows.length} could not be called the last time.`
    : html`
      <b>${plural(rows.length, "webhook")}</b> ${rows.length === 1 ? "is" : "are"} called when a limit is
      reached.
    `;
}

function command() {
  return `curl ${window.location.origin}/v1/organization/webhooks \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"url": "https://example.com/lorikeet"}'`;
}

function NewWebhook({ onMade, onClose }) {
  const form = useForm(
    { url: "", events: "alerts" },
    async ({ url, events }) => {
      const made = await post("/webhooks", { url: url.trim(), events: EVENTS[events] });
      invalidate("/webhooks");
      onMade(made);
    },
    ({ url }) => ({ url: webAddress(url) }),
  );
  return html`
    <${Dialog} title="New webhook" onClose=${onClose}>
      <${Form} form=${form} verb="Create webhook" what="create the webhook" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("url")}
          label="Address"
          type="url"
          placeholder="https://example.com/lorikeet"
          hint="It is called with POST for what happens in the organization and its tenants."
          autofocus
        />
        <${Select}
          ...${form.bind("events")}
          label="Called for"
          options=${[
            ["alerts", "limits, alerts and paused experiments"],
            ["responses", "background responses that have ended"],
            ["batches", "batches that have ended"],
            ["all", "all of these"],
          ]}
        />
      <//>
    <//>
  `;
}

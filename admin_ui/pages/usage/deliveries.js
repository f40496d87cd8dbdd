// The list of scheduled deliveries of exports, to a folder of the server or a bucket, with the runs of each and their
// failures.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty, Loaded, Notice } from "../../components/feedback.js";
import { Time } from "../../components/numbers.js";
import { Facts, Section } from "../../components/page.js";
import { Menu } from "../../components/menu.js";
import { Icon } from "../../components/icons.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del } from "../../lib/api.js";
import { invalidate, useApi, useList } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { FORMATS, titleOf } from "./export_kinds.js";
import { SetDelivery } from "./set_delivery.js";

const EVERY_MS = 15_000;

export function Deliveries() {
  const list = useList("/deliveries", {}, { limit: 50 });
  const [shown, show] = useQuery("delivery", "");
  const [dialog, open] = useState(null);
  const mayWrite = can("billing.write");
  const columns = [
    {
      key: "name",
      title: "Name",
      render: ({ id, name }) => html`
        <button type="button" class="link" onClick=${() => show(id)}>
          ${name}
        </button>
      `,
    },
    {
      key: "kind",
      title: "What",
      value: ({ kind, format }) => `${kind}, ${titleOf(FORMATS[kind], format)}`,
    },
    { key: "schedule", title: "Schedule" },
    { key: "location", title: "To", render: ({ location }) => html`<code>${location}</code>` },
    {
      key: "last",
      title: "Last run",
      sort: false,
      csv: false,
      render: ({ id }) => html`<${LastRun} id=${id} />`,
    },
    {
      key: "act",
      title: "",
      csv: false,
      class: "shrink",
      hide: !mayWrite,
      render: (delivery) => html`
        <${Menu}
          label="More about ${delivery.name}"
          look="button quiet small icon-only"
          align="end"
          button=${html`<${Icon} name="more" />`}
          items=${[
            { title: "History", icon: "clock", onClick: () => show(delivery.id) },
            { title: "Change", icon: "refresh", onClick: () => open({ change: delivery }) },
            { title: "Remove", icon: "trash", danger: true, onClick: () => open({ remove: delivery }) },
          ]}
        />
      `,
    },
  ];
  const command = `curl ${window.location.origin}/v1/organization/deliveries \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"name": "finance", "kind": "costs", "format": "csv", "schedule": "daily", "destination": {"type": "folder", "path": "finance"}}'`;
  return html`
    <${Section}
      title="Deliveries"
      hint="The same files, sent by themselves once a day or a month is over."
      actions=${
        mayWrite &&
        html`
          <${Button} icon="plus" onClick=${() => open({ change: null })}>
            New delivery
          <//>
        `
      }
    >
      <${Table}
        name="deliveries"
        label="Deliveries"
        columns=${columns}
        rows=${list.items}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        filter=${list.items?.length > 8}
        empty=${html`<${Empty}
            icon="external"
            title="Nothing is delivered yet"
            command=${mayWrite ? command : undefined}
          >
            Finance gets its files without asking: into a folder of the server, or a bucket of S3 or
            what speaks its protocol.
          <//>`}
      />
      ${shown && html`<${History} id=${shown} onClose=${() => show("")} />`}
      ${dialog && "change" in dialog && html`<${SetDelivery} from=${dialog.change} onClose=${() => open(null)} />`}
      ${dialog?.remove && html`<${Remove} delivery=${dialog.remove} onClose=${() => open(null)} />`}
    <//>
  `;
}

/** Return the state of a run: "delivered", "failing" (it is tried again) or "waiting". */
const stateOf = (run) => (run.delivered_at ? "delivered" : run.last_error ? "failing" : "waiting");
const TONES = { delivered: "good", failing: "bad", waiting: "warn" };
const State = ({ run }) => html`
  <${Badge} dot tone=${TONES[stateOf(run)]}>
    ${stateOf(run)}
  <//>
`;

function LastRun({ id }) {
  const { data } = useApi(`/deliveries/${id}`, {}, { every: EVERY_MS });
  if (!data) return html`<span class="faint">–</span>`;
  const run = data.runs.find((each) => !each.delivered_at && each.last_error) ?? data.runs[0];
  return run ? html`<${State} run=${run} /> ${run.period}` : html`<span class="faint">not due yet</span>`;
}

function History({ id, onClose }) {
  const found = useApi(`/deliveries/${encodeURIComponent(id)}`, {}, { every: EVERY_MS });
  const columns = [
    { key: "period", title: "Period" },
    { key: "state", title: "State", value: stateOf, render: (run) => html`<${State} run=${run} />` },
    { key: "attempts", title: "Attempts", format: "count" },
    {
      key: "at",
      title: "Delivered or next try",
      render: ({ delivered_at: done, due_at: due }) => html`<${Time} at=${done ?? due} relative />`,
    },
  ];
  return html`
    <${Dialog} side title=${found.data?.delivery.name ?? "Delivery"} onClose=${onClose}>
      <${Loaded} from=${found} what="load the delivery" missing=${html`<${Empty} title="This delivery is gone" />`}>
        ${({ delivery, runs }) => {
          const failing = runs.filter((run) => stateOf(run) === "failing");
          return html`
            <div class="stack">
              <${Facts}
                rows=${[
                  ["What", `${delivery.kind}, ${titleOf(FORMATS[delivery.kind], delivery.format)}`],
                  ["Schedule", `${delivery.schedule}, from ${delivery.from_period} on`],
                  ["To", html`<code>${delivery.location}</code>`],
                ]}
              />
              ${failing.map(
                (run) => html`
                  <${Notice} key=${run.period} tone="bad" title="${run.period} does not arrive">
                    ${run.last_error} It is tried again by itself, less and less often.
                  <//>
                `,
              )}
              <${Table}
                name="runs"
                label="Runs of ${delivery.name}"
                columns=${columns}
                rows=${runs}
                rowKey=${({ period }) => period}
                filter=${false}
                empty=${html`<${Empty} icon="clock" title="No run yet">
                    The first follows when ${delivery.from_period} is over.
                  <//>`}
              />
            </div>
          `;
        }}
      <//>
    <//>
  `;
}

function Remove({ delivery, onClose }) {
  const act = async () => {
    await del(`/deliveries/${delivery.id}`);
    invalidate("/deliveries?"); // the list: what is gone can't be read again
    toast(`${delivery.name} is removed`);
  };
  return html`
    <${Confirm}
      title="Remove the delivery ${delivery.name}?"
      verb="Remove"
      name=${delivery.name}
      act=${act}
      onClose=${onClose}
    >
      <p>
        No more files go to <code>${delivery.location}</code>, and its history here ends. Files that are
        there stay.
      </p>
    <//>
  `;
}

// The list of recent imports of adapters, from files and from URLs: under way, done, or refused with the reason.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del } from "../../lib/api.js";
import { useList } from "../../lib/data.js";
import { bytes } from "../../lib/format/format.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { Rejection } from "./report.js";

const AT_WORK = ["receiving", "fetching", "uploaded"];
const EVERY_MS = 2000;
const WORDS = {
  receiving: "receiving",
  fetching: "fetching",
  uploaded: "inspecting",
  done: "done",
  rejected: "refused",
  failed: "failed",
};
const TONES = {
  receiving: "info",
  fetching: "info",
  uploaded: "info",
  done: "good",
  rejected: "bad",
  failed: "warn",
};

export function Imports({ projectId }) {
  const base = `/projects/${encodeURIComponent(projectId)}/adapter_imports`;
  const list = useList(base, {}, { limit: 20 });
  const [canceling, cancel] = useState(null);
  const [refused, show] = useState(null);
  const isBusy = list.items?.some(({ state }) => AT_WORK.includes(state));
  useEffect(() => {
    if (!isBusy) return undefined;
    const timer = setInterval(list.reload, EVERY_MS);
    return () => clearInterval(timer);
  }, [isBusy]);
  if (!list.items?.length && !list.error) return null;
  const columns = [
    {
      key: "name",
      title: "Adapter",
      render: (row) =>
        row.version
          ? html`
            <a href=${to("adapters", projectId, row.name)}>
              ${row.name} v${row.version}
            </a>
          `
          : row.name || html`<span class="faint">not named yet</span>`,
    },
    { key: "source", title: "From" },
    {
      key: "state",
      title: "State",
      render: (row) => html`
        <${Badge} dot tone=${TONES[row.state]}>
          ${WORDS[row.state]}
        <//>
      `,
    },
    {
      key: "received_bytes",
      title: "Received",
      align: "end",
      render: (row) => html`
        <span class="num">
          ${bytes(row.received_bytes)}
          ${row.size_bytes && row.state === "receiving" ? ` of ${bytes(row.size_bytes)}` : ""}
        </span>
      `,
    },
    { key: "updated_at", title: "Last change", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      render: (row) => html`
        ${
          row.reason &&
          html`
            <${Button} small onClick=${() => show(row)}>
              Why
            <//>
          `
        }
        ${
          AT_WORK.includes(row.state) &&
          can("adapters.write", projectId) &&
          html`
            <${Button} small onClick=${() => cancel(row)}>
              Cancel
            <//>
          `
        }
      `,
    },
  ];
  return html`
    <${Section}
      title="Imports"
      hint="Uploads and fetches of the last month. One that stopped goes on when the same files are uploaded again."
    >
      <${Table}
        name="imports"
        label="Imports"
        columns=${columns}
        rows=${list.items}
        error=${list.error}
        reload=${list.reload}
        hasMore=${list.hasMore}
        more=${list.more}
        what="load the imports"
        filter=${false}
      />
      ${
        refused &&
        html`
          <${Dialog} title="Import of ${refused.name || "an adapter"}" onClose=${() => show(null)}>
            <${Rejection}
              message=${refused.reason}
              title=${refused.state === "rejected" ? "The adapter was refused" : "The import ended early"}
            />
          <//>
        `
      }
      ${
        canceling &&
        html`
          <${Confirm}
            title="Cancel this import?"
            verb="Cancel the import"
            onClose=${() => cancel(null)}
            act=${async () => {
              await del(`${base}/${encodeURIComponent(canceling.id)}`);
              list.reload();
              toast("The import is canceled");
            }}
          >
            <p>
              What has come of ${canceling.name || "it"} so far (${bytes(canceling.received_bytes)}) is discarded.
              Versions that are served are not touched.
            </p>
          <//>
        `
      }
    <//>
  `;
}

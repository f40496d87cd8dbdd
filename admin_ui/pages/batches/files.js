// The table of a tenant's files: inputs and outputs of batches. Names and content are the tenant's own.

import { Button } from "../../components/button.js";
import { Confirm } from "../../components/dialog.js";
import { Empty } from "../../components/feedback.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del } from "../../lib/api.js";
import { invalidate, useList } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { Download } from "./download.js";

const PURPOSES = { batch: "input of a batch", batch_output: "result of a batch" };

/** A tenant's files. onRun(file): called to make a batch of a file. */
export function Files({ projectId, may, onRun }) {
  if (!may("content.read")) return null;
  return html`
    <${Section} title="Files" hint="What batches read and what came of them. Each download is in the audit log.">
      <${List} projectId=${projectId} may=${may} onRun=${onRun} />
    <//>
  `;
}

function List({ projectId, may, onRun }) {
  const path = pathOf(projectId, "/files");
  const list = useList(path, {}, { limit: 50 });
  const [leaving, leave] = useState(null);
  const columns = [
    {
      key: "name",
      title: "File",
      class: "name-cell",
      render: ({ name, id }) => html`
        <span>
          ${name}
          <span class="row-why">${id}</span>
        </span>
      `,
    },
    { key: "purpose", title: "Purpose", value: ({ purpose }) => PURPOSES[purpose] ?? purpose },
    { key: "bytes", title: "Size", format: "bytes", total: true },
    { key: "created_at", title: "Made", format: "time" },
    { key: "expires_at", title: "Expires", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      render: (row) => html`
        <span class="row">
          ${
            row.purpose === "batch" &&
            may("keys.write") &&
            html`
              <${Button} small onClick=${() => onRun(row)}>
                Run
              <//>
            `
          }
          <${Download} path="${path}/${row.id}/content" name=${row.name} />
          ${
            may("keys.write") &&
            html`<${Button} small icon="trash" label="Delete ${row.name}" onClick=${() => leave(row)} />`
          }
        </span>
      `,
    },
  ];
  return html`
    <${Table}
      name="files"
      label="Files"
      columns=${columns}
      rows=${list.items}
      error=${list.error}
      reload=${list.reload}
      loading=${list.loading}
      hasMore=${list.hasMore}
      more=${list.more}
      what="load the files"
      empty=${html`<${Empty} icon="table" title="No file yet">
          A file of a batch has a request on each line, in JSON.
        <//>`}
    />
    ${
      leaving &&
      html`
        <${Confirm}
          title="Delete ${leaving.name}?"
          verb="Delete the file"
          name=${leaving.name}
          onClose=${() => leave(null)}
          act=${async () => {
            await del(`${path}/${leaving.id}`);
            invalidate(path);
            toast(`${leaving.name} is deleted`);
          }}
        >
          <p>Nobody can read it any more. A batch that reads it goes on to its end.</p>
        <//>
      `
    }
  `;
}

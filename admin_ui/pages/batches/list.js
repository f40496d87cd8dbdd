// The page of a tenant's batches and files, with the progress of each batch.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Table } from "../../components/table.js";
import { useApi, useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { to } from "../../lib/router.js";
import { Tenant } from "../tenants/frame.js";
import { NewBatch } from "./create.js";
import { Files } from "./files.js";
import { End, Progress, isOpen, paceOf, toneOf, wordOf } from "./words.js";

const EVERY_MS = 2000;

export default function Batches({ params }) {
  const id = params.project;
  const list = useList(pathOf(id, "/batches"), {}, { limit: 50 });
  const rows = useMoving(id, list.items);
  const [isMaking, make] = useState(null);
  const button = (may) =>
    may("keys.write") &&
    html`
      <${Button} kind="primary" icon="plus" onClick=${() => make({})}>
        New batch
      <//>
    `;
  const columns = [
    { key: "id", title: "Batch", class: "name-cell", render: ({ id: batch }) => html`<code>${batch}</code>` },
    {
      key: "status",
      title: "State",
      class: "shrink",
      value: wordOf,
      render: (row) => html`
        <${Badge} dot tone=${toneOf(row)}>
          ${wordOf(row)}
        <//>
      `,
    },
    {
      key: "progress",
      title: "Lines",
      value: ({ completed, failed }) => completed + failed,
      render: (row) => html`<${Progress} batch=${row} compact />`,
    },
    { key: "lines_per_s", title: "Pace", align: "end", render: (row) => html`<span class="num">${paceOf(row)}</span>` },
    { key: "end", title: "End", sort: false, csv: false, render: (row) => html`<${End} batch=${row} />` },
    { key: "output_tokens", title: "Output", format: "tokens", total: true },
    { key: "created_at", title: "Made", format: "time", class: "shrink" },
  ];
  return html`
    <${Tenant}
      params=${params}
      lead=${rows && html`<${Lead} rows=${rows} isAll=${!list.hasMore} />`}
      actions=${(_, may) => button(may)}
    >
      ${(_project, may) => html`
        <${Table}
          name="batches"
          label="Batches"
          columns=${columns}
          rows=${rows}
          href=${({ id: batch }) => to("tenants", id, "batches", batch)}
          error=${list.error}
          reload=${list.reload}
          loading=${list.loading}
          hasMore=${list.hasMore}
          more=${list.more}
          what="load the batches"
          empty=${html`<${Empty}
              icon="batches"
              title="No batch yet"
              action=${button(may)}
              command="lorikeet batch create lines.jsonl --wait"
            >
              A batch runs the requests of a file in what other requests leave free, at half the price, within 24
              hours.
            <//>`}
        />
        <${Files} projectId=${id} may=${may} onRun=${(file) => make({ file })} />
        ${isMaking && html`<${NewBatch} projectId=${id} file=${isMaking.file} onClose=${() => make(null)} />`}
      `}
    <//>
  `;
}

/** Return the rows, with batches that have not ended kept up to date. */
function useMoving(projectId, rows) {
  const moves = rows?.some(isOpen);
  const { data } = useApi(moves ? pathOf(projectId, "/batches") : null, { limit: 50 }, { every: EVERY_MS });
  const [fresh, keep] = useState({});
  useEffect(() => {
    if (data) keep((was) => ({ ...was, ...Object.fromEntries(data.data.map((row) => [row.id, row])) }));
  }, [data]);
  return rows?.map((row) => (isOpen(row) ? (fresh[row.id] ?? row) : row));
}

function Lead({ rows, isAll }) {
  const open = rows.filter(isOpen).length;
  const all = `${isAll ? "" : "the latest "}${plural(rows.length, "batch", "batches")}`;
  if (!open)
    return html`${rows.length ? `All of ${all} ended.` : "No batch was made, or those that ended are over 30 days old."}
    `;
  return html`<b>${open}</b> of ${all} ${open === 1 ? "is" : "are"} under way.`;
}

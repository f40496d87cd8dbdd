// The page of one batch: its progress, the time at which it will end, the reasons of failed lines, and its files.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm } from "../../components/dialog.js";
import { Empty, Loaded } from "../../components/feedback.js";
import { Num, Time } from "../../components/numbers.js";
import { Facts, Page, Section } from "../../components/page.js";
import { Stat, Stats } from "../../components/charts/stat.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate, useApi } from "../../lib/data.js";
import * as format from "../../lib/format/format.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { useProjectNames } from "../../lib/projects.js";
import { mayIn, pathOf } from "../../lib/projects_api.js";
import { to } from "../../lib/router.js";
import { isMember } from "../../lib/session.js";
import { Download } from "./download.js";
import { End, Progress, isOpen, mayCancel, numDone, paceOf, reasonOf, toneOf, wordOf } from "./words.js";

const EVERY_MS = 1000;

export default function Batch({ params: { project: id, batch: batchId } }) {
  const path = pathOf(id, `/batches/${encodeURIComponent(batchId)}`);
  const [hasEnded, setEnded] = useState(false);
  const batch = useApi(path, {}, { every: hasEnded ? 0 : EVERY_MS });
  const project = useApi(pathOf(id));
  const may = mayIn(id, project.data);
  const names = useProjectNames();
  const [isAsking, ask] = useState(false);
  const { data } = batch;
  useEffect(() => setEnded(!!data && !isOpen(data)), [data]);
  const crumbs = [
    ...(isMember() ? [] : [["Tenants", "/admin/tenants"]]),
    [names(id), to("tenants", id)],
    ["Batches", to("tenants", id, "batches")],
  ];
  if (batch.error?.isMissing) {
    return html`
      <${Page} title="Batch" crumbs=${crumbs}>
        <${Empty}
          icon="batches"
          title="There is no such batch"
          action=${html`<${Button} href=${to("tenants", id, "batches")}>All batches<//>`}
        >
          A batch is shown for 30 days after its end.
        <//>
      <//>
    `;
  }
  const actions =
    data &&
    html`
      <${Results} batch=${data} may=${may} />
      ${
        mayCancel(data) &&
        may("keys.write") &&
        html`
          <${Button} kind="danger" onClick=${() => ask(true)}>
            Cancel the batch
          <//>
        `
      }
    `;
  return html`
    <${Page} title="Batch" crumbs=${crumbs} lead=${data && html`<${Lead} batch=${data} />`} actions=${actions}>
      <${Loaded} from=${batch} what="load the batch">
        ${(shown) => html`
          <${Faults} errors=${shown.errors} />
          <${Figures} batch=${shown} />
          <${Failures} batch=${shown} />
          <${About} batch=${shown} projectId=${id} />
          ${
            isAsking &&
            html`
              <${Confirm}
                title="Cancel the batch?"
                verb="Cancel the batch"
                onClose=${() => ask(false)}
                act=${async () => {
                  await post(`${path}/cancel`);
                  invalidate(pathOf(id, "/batches"));
                  toast("The batch is being cancelled");
                }}
              >
                <p>
                  The <b>${format.exactly(shown.total - numDone(shown))}</b> lines without a result never run and cost
                  nothing; those that run now are stopped. The <b>${format.exactly(numDone(shown))}</b> results that are
                  there stay, and are billed.
                </p>
              <//>
            `
          }
        `}
      <//>
    <//>
  `;
}

function Lead({ batch }) {
  const { status, total, failed } = batch;
  const state = html`
    <${Badge} dot tone=${toneOf(batch)}>
      ${wordOf(batch)}
    <//>
  `;
  if (status === "failed") return html`${state} The file was refused: no line ran.`;
  if (isOpen(batch))
    return html`
      ${state} <b>${format.percent(total ? numDone(batch) / total : 0)}</b> of ${format.exactly(total)} lines have a
      result.${batch.waits_for ? html` No line can run now: ${batch.waits_for.message}` : ""}
    `;
  if (!total) return html`${state} The batch ended before its file was checked: no line ran.`;
  return html`
    ${state} ${format.exactly(total - failed)} of ${format.exactly(total)} lines were answered
    ${failed ? html`, <b>${format.exactly(failed)}</b> were not` : ""}
    .
  `;
}

function Results({ batch, may }) {
  if (!may("content.read")) return null;
  const at = (file) => pathOf(batch.project_id, `/files/${file}/content`);
  return html`
    ${
      batch.output_file_id &&
      html`
        <${Download} path=${at(batch.output_file_id)} name="${batch.id}_output.jsonl" title="Output" kind="primary" />
      `
    }
    ${
      batch.error_file_id &&
      html`<${Download} path=${at(batch.error_file_id)} name="${batch.id}_error.jsonl" title="Errors" />`
    }
  `;
}

function Faults({ errors }) {
  if (!errors.length) return null;
  const columns = [
    { key: "line", title: "Line", align: "end", class: "shrink", format: "count" },
    { key: "message", title: "What is wrong" },
    { key: "param", title: "Field", render: ({ param }) => param && html`<code>${param}</code>` },
    { key: "code", title: "Code", render: ({ code }) => html`<code>${code}</code>` },
  ];
  return html`
    <${Section}
      title="Faults of the file"
      hint="Mend these lines, upload the file again, and make a new batch. The first hundred are shown."
    >
      <${Table}
        name="faults"
        label="Faults of the file"
        columns=${columns}
        rows=${errors}
        rowKey=${({ line, code, param }) => `${line} ${code} ${param}`}
        filter=${false}
      />
    <//>
  `;
}

function Figures({ batch }) {
  if (batch.ended_at && !batch.total) return null;
  return html`
    <div class="stack batch-figures">
      <${Progress} batch=${batch} />
      <${Stats}>
        <${Stat}
          title=${batch.ended_at ? "Ended" : "Expected end"}
          value=${html`<${End} batch=${batch} />`}
          hint=${batch.ended_at ? undefined : html`at the latest <${Time} at=${batch.expires_at} />`}
        />
        <${Stat} title="Pace" value=${paceOf(batch) || "–"} hint=${batch.ended_at ? undefined : "of the last minute"} />
        <${Stat}
          title="Input tokens"
          value=${html`<${Num} value=${batch.input_tokens} kind="tokens" />`}
          hint=${html`<${Num} value=${batch.cached_tokens} kind="tokens" /> of them cached`}
        />
        <${Stat} title="Output tokens" value=${html`<${Num} value=${batch.output_tokens} kind="tokens" />`} />
      <//>
    </div>
  `;
}

function Failures({ batch }) {
  const rows = Object.entries(batch.failures).map(([code, number]) => ({ code, number, share: number / batch.total }));
  if (!rows.length) return null;
  const columns = [
    {
      key: "code",
      title: "Reason",
      render: ({ code }) => html`
        <span>
          <code>${code}</code>
          <span class="row-why">${reasonOf(code)}</span>
        </span>
      `,
    },
    { key: "number", title: "Lines", format: "count", total: true },
    { key: "share", title: "Of all lines", format: "percent" },
  ];
  return html`
    <${Section} title="Why lines failed" hint="Each of them is in the error file, once the batch has ended.">
      <${Table}
        name="failures"
        label="Why lines failed"
        columns=${columns}
        rows=${rows}
        rowKey=${({ code }) => code}
        sorted="-number"
        filter=${false}
      />
    <//>
  `;
}

function About({ batch, projectId }) {
  const time = (at) => (at ? html`<${Time} at=${at} />` : undefined);
  return html`
    <${Section} title="About" card>
      <${Facts}
        rows=${[
          ["Id", html`<code>${batch.id}</code>`],
          ["Endpoint", html`<code>${batch.endpoint}</code>`],
          [
            "Runs as",
            html`<a href="${to("tenants", projectId, "keys")}?key=${batch.api_key_id}">
              <code>${batch.api_key_id}</code>
            </a>`,
          ],
          ["Input file", html`<code>${batch.input_file_id}</code>`],
          ["Made", time(batch.created_at)],
          ["Began to run", time(batch.in_progress_at)],
          ["Cancelled", time(batch.cancelling_at)],
          ["Ended", time(batch.ended_at)],
          ["Completion window ends", time(batch.expires_at)],
        ]}
      />
    <//>
  `;
}

// The page of a tenant's feedback metrics: the values of votes, the better direction, and how votes are sent.

import { Badge } from "../../../components/badge.js";
import { Button } from "../../../components/button.js";
import { Confirm } from "../../../components/dialog.js";
import { Command, Empty } from "../../../components/feedback.js";
import { Page, Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { toast } from "../../../components/toast.js";
import { del } from "../../../lib/api.js";
import { invalidate, useAll } from "../../../lib/data.js";
import { plural } from "../../../lib/format/format.js";
import { html, useState } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { useProjectId } from "../../../lib/projects.js";
import { can } from "../../../lib/session.js";
import { feedbackLine } from "../calls.js";
import { ChooseTenant, ExperimentTabs } from "../tabs.js";
import { NewMetric } from "./new_metric.js";
import { GOALS, KINDS, TYPES, boundsOf, wordFor } from "./words.js";

export default function FeedbackMetrics() {
  const projectId = useProjectId();
  const list = useAll(projectId ? pathOf(projectId, "/feedback_metrics") : null);
  const [asking, ask] = useState(null);
  if (!projectId) return html`<${ChooseTenant} />`;
  const mayWrite = can("experiments.write", projectId);
  const create =
    mayWrite &&
    html`
      <${Button} kind="primary" icon="plus" onClick=${() => ask({ create: true })}>
        New metric
      <//>
    `;
  const columns = [
    {
      key: "name",
      title: "Metric",
      render: ({ name, description }) => html`
        <span>
          <code>${name}</code>
          ${
            description &&
            html`
              <br />
              <small class="faint">${description}</small>
            `
          }
        </span>
      `,
    },
    {
      key: "type",
      title: "A vote is",
      render: (row) => html`
        <span>
          ${wordFor(TYPES, row.type)}
          ${
            boundsOf(row) &&
            html`
              <br />
              <small class="faint">${boundsOf(row)}</small>
            `
          }
        </span>
      `,
    },
    { key: "goal", title: "Better", render: ({ goal }) => html`<${Badge}>${wordFor(GOALS, goal)}<//>` },
    { key: "kind", title: "Its value is of", value: ({ kind }) => wordFor(KINDS, kind) },
    { key: "created_at", title: "Created", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !mayWrite,
      render: (row) => html`
        <${Button} kind="quiet" small icon="trash" label="Remove ${row.name}" onClick=${() => ask({ remove: row })} />
      `,
    },
  ];
  const rows = list.data;
  return html`
    <${Page}
      title="Experiments"
      tabs=${html`<${ExperimentTabs} projectId=${projectId} />`}
      actions=${create}
      lead=${
        rows &&
        (rows.length
          ? html`<b>${plural(rows.length, "metric")}</b> can be voted on.`
          : "Nothing can be voted on yet; costs, times and errors are known without.")
      }
    >
      <${Table}
        label="Metrics of feedback"
        columns=${columns}
        rows=${rows}
        error=${list.error}
        reload=${list.reload}
        what="load the metrics"
        filter=${false}
        empty=${html`<${Empty} icon="experiments" title="No metric of feedback yet" action=${create}>
            Thumbs, stars, whether an answer solved the case: programs send them about the id of a reply.
          <//>`}
      />
      ${
        rows?.length > 0 &&
        html`
          <${Section}
            title="Sending feedback"
            hint="With any key of the tenant that may infer, or with one that may only send feedback."
          >
            <${Command} label="feedback line" text=${feedbackLine(rows[0].name, { [rows[0].name]: rows[0] })} />
          <//>
        `
      }
      ${asking?.create && html`<${NewMetric} projectId=${projectId} onClose=${() => ask(null)} />`}
      ${asking?.remove && html`<${Remove} projectId=${projectId} metric=${asking.remove} onClose=${() => ask(null)} />`}
    <//>
  `;
}

function Remove({ projectId, metric: { name }, onClose }) {
  return html`
    <${Confirm}
      title="Remove ${name}?"
      verb="Remove metric"
      onClose=${onClose}
      act=${async () => {
        await del(pathOf(projectId, `/feedback_metrics/${encodeURIComponent(name)}`));
        invalidate(pathOf(projectId, "/feedback_metrics"));
        toast(`${name} is removed`);
      }}
    >
      <p>
        Votes for <code>${name}</code> are refused from then on. It stays while an experiment or a vote needs it.
      </p>
    <//>
  `;
}

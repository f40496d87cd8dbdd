// A tenant's metrics that come as feedback: what may be voted on, which way is better, and how votes are sent.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Command, Empty, Notice } from "../../components/feedback.js";
import { Form, Select, TextArea, TextField, useForm } from "../../components/form.js";
import { Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate, useAll } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { useProjectId } from "../../lib/projects.js";
import { modelName, notLonger, number } from "../../lib/rules/checks.js";
import { can } from "../../lib/session.js";
import { feedbackLine } from "./calls.js";
import { ChooseTenant, ExperimentTabs } from "./tabs.js";
import { isBuiltIn, labelsOf } from "./words.js";

const MAX_DESCRIPTION_CHARS = 500;
const TYPES = [
  ["boolean", "yes or no, such as a thumb"],
  ["number", "a number, such as stars"],
  ["label", "one of some words"],
];
const GOALS = [
  ["increase", "more is better"],
  ["decrease", "less is better"],
];
const KINDS = [
  ["mean", "a unit: what its votes sum up to"],
  ["ratio", "a vote: the mean of all votes"],
];
const wordFor = (options, key) => options.find(([each]) => each === key)?.[1] ?? key;

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

function boundsOf({ type, least, most, ...metric }) {
  if (type === "label")
    return labelsOf(metric)
      .map(([label, value]) => `${label} = ${value}`)
      .join(", ");
  if (type !== "number" || (least === null && most === null)) return "";
  return `${least ?? "any"} to ${most ?? "any"}`;
}

function NewMetric({ projectId, onClose }) {
  const form = useForm(
    { name: "", type: "boolean", goal: "increase", kind: "mean", least: "", most: "", labels: "", description: "" },
    async (values) => {
      const bound = (text) => (text.trim() === "" ? null : Number(text));
      const { name, type, goal, kind, description } = values;
      const body = {
        name: name.trim(),
        type,
        goal,
        kind,
        description: description.trim(),
        ...(type === "number" && { least: bound(values.least), most: bound(values.most) }),
        ...(type === "label" && { labels: readLabels(values.labels) }),
      };
      await post(pathOf(projectId, "/feedback_metrics"), body);
      invalidate(pathOf(projectId, "/feedback_metrics"));
      onClose();
      toast(`${name.trim()} can be voted on`);
    },
    ({ name, type, least, most, labels, description }) => ({
      description: notLonger(description, MAX_DESCRIPTION_CHARS),
      name:
        modelName(name) ??
        (isBuiltIn(name) ? "A built-in metric has this name." : name.includes(".") ? "Without a dot." : undefined),
      ...(type === "number" && {
        least: number(least, {}),
        most:
          number(most, {}) ??
          (least.trim() && most.trim() && Number(most) <= Number(least)
            ? "It has to be more than the least."
            : undefined),
      }),
      ...(type === "label" && { labels: wrongLabels(labels) }),
    }),
  );
  const { type } = form.values;
  return html`
    <${Dialog} title="New metric of feedback" onClose=${onClose}>
      <${Form} form=${form} verb="Create metric" what="create the metric" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="What votes call it, such as thumbs_up."
          autocomplete="off"
          spellcheck="false"
          autofocus
        />
        <${Select} ...${form.bind("type")} label="A vote is" options=${TYPES} />
        ${
          type === "number" &&
          html`
            <div class="grid-2">
              <${TextField} ...${form.bind("least")} label="Least" optional inputmode="decimal" autocomplete="off" />
              <${TextField} ...${form.bind("most")} label="Most" optional inputmode="decimal" autocomplete="off" />
            </div>
          `
        }
        ${
          type === "label" &&
          html`
            <${TextArea}
              ...${form.bind("labels")}
              label="Labels"
              rows=${3}
              hint="One LABEL=NUMBER in a line, such as solved=1."
              spellcheck="false"
            />
          `
        }
        <${Select} ...${form.bind("goal")} label="Better" options=${GOALS} />
        <${Select}
          ...${form.bind("kind")}
          label="Its value is of"
          options=${KINDS}
          hint="Of a unit is the honest one where some vote far more than others."
        />
        <${TextField} ...${form.bind("description")} label="Description" optional autocomplete="off" />
        <${Notice}>It cannot be changed later, so that a number means the same from the first vote to the last.<//>
      <//>
    <//>
  `;
}

const linesOf = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

const readLabels = (text) =>
  Object.fromEntries(
    linesOf(text).map((line) => [
      line.slice(0, line.lastIndexOf("=")).trim(),
      Number(line.slice(line.lastIndexOf("=") + 1)),
    ]),
  );

function wrongLabels(text) {
  const lines = linesOf(text);
  if (lines.length === 0) return "Give at least one label.";
  const wrong = lines.find((line) => !/^[^=]+=\s*[-+]?(\d+\.?\d*|\.\d+)$/.test(line));
  return wrong && `“${wrong}” is no label with its number, such as solved=1.`;
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

// The form of a new feedback metric, with the checks of what is typed.

import { Dialog } from "../../../components/dialog.js";
import { Notice } from "../../../components/feedback.js";
import { Form, Select, TextArea, TextField, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { modelName, notLonger, number } from "../../../lib/rules/checks.js";
import { isBuiltIn } from "../words.js";
import { GOALS, KINDS, TYPES } from "./words.js";

const MAX_DESCRIPTION_CHARS = 500;

export function NewMetric({ projectId, onClose }) {
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

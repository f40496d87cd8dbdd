// Holdouts: units that take part in no experiment that names the holdout.

import { Button } from "../../../components/button.js";
import { Dialog } from "../../../components/dialog.js";
import { Empty } from "../../../components/feedback.js";
import { Form, TextField, useForm } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate, useAll } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { modelName } from "../../../lib/rules/checks.js";
import { weightOf } from "../form/values.js";
import { wrongPart } from "../form/wrong.js";
import { coverageShown } from "../words.js";
import { removal } from "./remove.js";

const HOLDOUTS_HINT =
  "Units that take part in no experiment that names the holdout: what all changes together have done is " +
  "seen against them.";

export function Holdouts({ projectId, mayWrite, ask }) {
  const list = useAll(pathOf(projectId, "/holdouts"));
  const add =
    mayWrite &&
    html`
      <${Button} small icon="plus" onClick=${() => ask({ holdout: true })}>
        New holdout
      <//>
    `;
  const columns = [
    { key: "name", title: "Holdout" },
    {
      key: "size",
      title: "Units",
      align: "end",
      render: ({ size }) => html`<span class="num">${coverageShown(size)}</span>`,
    },
    { key: "created_at", title: "Created", format: "time" },
    removal("holdout", "/holdouts", mayWrite, ask),
  ];
  return html`
    <${Section}
      title="Holdouts"
      hint=${HOLDOUTS_HINT}
      actions=${add}
    >
      <${Table}
        name="holdouts"
        label="Holdouts"
        columns=${columns}
        rows=${list.data}
        error=${list.error}
        reload=${list.reload}
        what="load the holdouts"
        filter=${false}
        empty=${html`<${Empty} icon="shield" title="Nobody is held out" />`}
      />
    <//>
  `;
}

export function NewHoldout({ projectId, onClose }) {
  const form = useForm(
    { name: "", size: "5" },
    async ({ name, size }) => {
      await post(pathOf(projectId, "/holdouts"), { name: name.trim(), size: weightOf(size) });
      invalidate(pathOf(projectId, "/holdouts"));
      onClose();
      toast(`The holdout ${name.trim()} is made`);
    },
    ({ name, size }) => ({ name: modelName(name), size: wrongPart(size, { min: 0.01 }) }),
  );
  return html`
    <${Dialog} title="New holdout" onClose=${onClose}>
      <${Form} form=${form} verb="Create holdout" what="create the holdout" onCancel=${onClose}>
        <${TextField} ...${form.bind("name")} label="Name" autocomplete="off" spellcheck="false" autofocus />
        <${TextField}
          ...${form.bind("size")}
          label="Part of all units, %"
          hint="It never changes."
          inputmode="decimal"
          autocomplete="off"
        />
      <//>
    <//>
  `;
}

// Layers: two experiments of one layer have no unit in common.

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
import { coverageShown } from "../words.js";
import { removal } from "./remove.js";

const LAYERS_HINT =
  "Experiments of one layer have no unit in common; those of two layers share theirs at random. Most " +
  "tenants need one. Free is the part that another experiment may still take: a stopped one keeps its part " +
  "until it is decided.";

export function Layers({ projectId, mayWrite, ask }) {
  const list = useAll(pathOf(projectId, "/experiment_layers"));
  const add =
    mayWrite &&
    html`
      <${Button} small icon="plus" onClick=${() => ask({ layer: true })}>
        New layer
      <//>
    `;
  const columns = [
    { key: "name", title: "Layer" },
    {
      key: "experiments",
      title: "Experiments on it",
      value: ({ experiments }) => experiments.join(", "),
      render: ({ experiments }) => experiments.join(", ") || html`<span class="faint">none</span>`,
    },
    {
      key: "free",
      title: "Free",
      align: "end",
      render: ({ free }) => html`<span class="num">${coverageShown(free)}</span>`,
    },
    removal("layer", "/experiment_layers", mayWrite, ask),
  ];
  return html`
    <${Section}
      title="Layers"
      hint=${LAYERS_HINT}
      actions=${add}
    >
      <${Table}
        name="layers"
        label="Layers"
        columns=${columns}
        rows=${list.data}
        error=${list.error}
        reload=${list.reload}
        what="load the layers"
        filter=${false}
        empty=${html`<${Empty} icon="adapters" title="No layer yet">
            The layer “default” comes with the first experiment.
          <//>`}
      />
    <//>
  `;
}

export function NewLayer({ projectId, onClose }) {
  const form = useForm(
    { name: "" },
    async ({ name }) => {
      await post(pathOf(projectId, "/experiment_layers"), { name: name.trim() });
      invalidate(pathOf(projectId, "/experiment_layers"));
      onClose();
      toast(`The layer ${name.trim()} is made`);
    },
    ({ name }) => ({ name: modelName(name) }),
  );
  return html`
    <${Dialog} title="New layer" onClose=${onClose}>
      <${Form} form=${form} verb="Create layer" what="create the layer" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="Of what its experiments are about, such as prompts."
          autocomplete="off"
          spellcheck="false"
          autofocus
        />
      <//>
    <//>
  `;
}

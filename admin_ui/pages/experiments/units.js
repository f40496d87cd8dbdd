// What experiments of a tenant share: layers, whose experiments have no unit in common; units held out of all; and one
// to be forgotten.

import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty, Notice } from "../../components/feedback.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate, useAll } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { useProjectId } from "../../lib/projects.js";
import { given, modelName, notLonger } from "../../lib/rules/checks.js";
import { can } from "../../lib/session.js";
import { weightOf, wrongPart } from "./form/values.js";
import { ChooseTenant, ExperimentTabs } from "./tabs.js";
import { MAX_UNIT_CHARS, coverageShown } from "./words.js";

export default function Units() {
  const projectId = useProjectId();
  const [asking, ask] = useState(null);
  if (!projectId) return html`<${ChooseTenant} />`;
  const mayWrite = can("experiments.write", projectId);
  const shared = { projectId, mayWrite, ask };
  return html`
    <${Page}
      title="Experiments"
      tabs=${html`<${ExperimentTabs} projectId=${projectId} />`}
      lead="Units are known by a keyed digest alone, never by their names."
    >
      <${Layers} ...${shared} />
      <${Holdouts} ...${shared} />
      ${mayWrite && html`<${Forget} projectId=${projectId} />`}
      ${asking?.layer && html`<${NewLayer} projectId=${projectId} onClose=${() => ask(null)} />`}
      ${asking?.holdout && html`<${NewHoldout} projectId=${projectId} onClose=${() => ask(null)} />`}
      ${asking?.remove && html`<${Remove} projectId=${projectId} ...${asking.remove} onClose=${() => ask(null)} />`}
    <//>
  `;
}

const removal = (what, path, mayWrite, ask) => ({
  key: "act",
  title: "",
  sort: false,
  csv: false,
  class: "shrink",
  hide: !mayWrite,
  render: ({ name, experiments = [] }) =>
    experiments.length === 0 &&
    name !== "default" &&
    html`
      <${Button}
        kind="quiet"
        small
        icon="trash"
        label="Remove ${name}"
        onClick=${() => ask({ remove: { what, path, name } })}
      />
    `,
});

function Layers({ projectId, mayWrite, ask }) {
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
      hint="Experiments of one layer have no unit in common; those of two layers share theirs at random. Most tenants need one. Free is the part that another experiment may still take: a stopped one keeps its part until it is decided."
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

function Holdouts({ projectId, mayWrite, ask }) {
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
      hint="Units that take part in no experiment that names the holdout: what all changes together have done is seen against them."
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

function NewLayer({ projectId, onClose }) {
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

function NewHoldout({ projectId, onClose }) {
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

function Remove({ projectId, what, path, name, onClose }) {
  return html`
    <${Confirm}
      title="Remove the ${what} ${name}?"
      verb="Remove ${what}"
      onClose=${onClose}
      act=${async () => {
        await del(pathOf(projectId, `${path}/${encodeURIComponent(name)}`));
        invalidate(pathOf(projectId, path));
        toast(`The ${what} ${name} is removed`);
      }}
    >
      <p>No experiment may name it then. One of the same name later has other units.</p>
    <//>
  `;
}

/** The name is typed into a form and sent once; it is in no address and is not kept. */
function Forget({ projectId }) {
  const [asked, ask] = useState(null);
  const form = useForm(
    { unit: "" },
    async ({ unit }) => ask(unit.trim()),
    ({ unit }) => ({ unit: given(unit, "Give the unit as requests name it.") ?? notLonger(unit, MAX_UNIT_CHARS) }),
  );
  const forget = async () => {
    const { experiments } = await post(pathOf(projectId, "/experiment_units/forget"), { unit: asked });
    invalidate(pathOf(projectId, "/experiments"));
    form.set("unit", "");
    toast(
      experiments ? `The unit is forgotten in ${plural(experiments, "experiment")}` : "No experiment knew this unit",
    );
  };
  return html`
    <${Section}
      title="Forget a unit"
      hint="For somebody who asks that nothing be kept about them: what experiments know of one unit goes, and the sums are corrected."
      card
    >
      <${Form} form=${form} verb="Forget it …" what="forget the unit">
        <${TextField}
          ...${form.bind("unit")}
          label="Unit"
          hint="As requests name it, such as ann@example.com."
          autocomplete="off"
          spellcheck="false"
        />
      <//>
      ${
        asked !== null &&
        html`
          <${Confirm}
            title="Forget this unit?"
            verb="Forget the unit"
            name=${asked}
            onClose=${() => ask(null)}
            act=${forget}
          >
            <p>
              All that experiments know of it is removed and their results no longer count it. Its next request makes
              it a new unit.
            </p>
            <${Notice}>Usage and invoices know nothing of units, and stay as they are.<//>
          <//>
        `
      }
    <//>
  `;
}

// The form of a new pool: its model, its engines and its users; it says in words what will happen.

import { Dialog } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Form, Select, TextArea, TextField, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { navigate, to } from "../../lib/router.js";
import { given, named, whole } from "../../lib/rules/checks.js";
import { AccessFields, bodyOfAccess, whoIsChosen, wrongGrants } from "./access.js";
import { STARTED, startedOf } from "./started.js";
import { readSettings, replicas, wrongSettings } from "./words.js";

export function NewPool({ onClose }) {
  const form = useForm(
    { name: "", engine: "lorikeet", model: "", settings: "", num_replicas: "1", access: "all", grants: [] },
    async (values) => {
      const body = {
        name: values.name.trim(),
        engine: values.engine,
        model: values.model.trim(),
        settings: readSettings(values.settings),
        num_replicas: Number(values.num_replicas),
      };
      const made = await post("/pools", { ...body, ...bodyOfAccess(values) });
      invalidate("/pools", "/hosts");
      onClose();
      navigate(to("models", made.id));
      toast(`The pool ${made.name} is made`);
    },
    ({ name, model, settings, num_replicas: number, ...access }) => ({
      name: named(name),
      model: given(model, "Say which model."),
      settings: wrongSettings(settings),
      num_replicas: whole(number, { max: 1000 }),
      grants: wrongGrants(access),
    }),
  );
  const started = startedOf(form.values);
  return html`
    <${Dialog} title="New pool" onClose=${onClose} wide>
      <${Form} form=${form} verb="Create pool" what="create the pool" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="Requests ask for the model by this name. It cannot be changed later."
          maxlength="128"
          autocomplete="off"
          spellcheck="false"
          autofocus
        />
        <${Select}
          ...${form.bind("engine")}
          label="Engine"
          options=${STARTED.map(({ engine, title }) => [engine, title])}
          hint=${started.hint}
        />
        <${TextField}
          ...${form.bind("model")}
          label="Model"
          hint=${started.modelHint}
          autocomplete="off"
          spellcheck="false"
        />
        <${TextField}
          ...${form.bind("num_replicas")}
          label="Replicas"
          type="number"
          min="0"
          max="1000"
          hint="Engines that serve it, on one or several hosts."
        />
        <${TextArea}
          ...${form.bind("settings")}
          label="Engine settings"
          optional
          rows=${3}
          hint=${started.settingsHint}
          spellcheck="false"
        />
        <${AccessFields} form=${form} />
        <${Notice} title="What will happen">${consequence(form.values)}<//>
      <//>
    <//>
  `;
}

function consequence({ name, engine, model, num_replicas: number, ...access }) {
  const what = model.trim() ? `The hosts fetch and prepare ${model.trim()}` : "The hosts fetch and prepare the model";
  const start =
    Number(number) > 0
      ? `then ${replicas(Number(number))} ${Number(number) === 1 ? "starts" : "start"}, where there is room`
      : "and no replica starts until the pool is scaled up";
  return (
    `${what}; ${start}. Once the first is ready, ${whoIsChosen(access)} can ask for ` +
    `“${name.trim() || "the name"}”. ${startedOf({ engine }).consequence ?? ""} Other pools go on as they ` +
    "are."
  );
}

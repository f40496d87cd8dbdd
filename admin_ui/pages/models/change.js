// The forms for changes of a pool: another model or other settings, and another number of replicas; each says what will
// happen.

import { Dialog } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Checkbox, Form, TextArea, TextField, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { given, whole } from "../../lib/rules/checks.js";
import { startedOf } from "./started.js";
import { memoryOf, pathOf, readSettings, replicas, writeSettings, wrongSettings } from "./words.js";

export function UpdatePool({ pool, onClose }) {
  const form = useForm(
    { model: pool.model, settings: writeSettings(pool.settings), drop: false },
    async ({ model, settings, drop }) => {
      const changed = await post(pathOf(pool.id), {
        model: model.trim(),
        settings: readSettings(settings),
        allow_unfit_adapters: drop,
      });
      invalidate("/pools");
      onClose();
      const isNew = changed.wanted_revision !== pool.wanted_revision;
      toast(isNew ? `${pool.name} changes to revision ${changed.wanted_revision}` : "Nothing to change");
    },
    ({ model, settings }) => ({ model: given(model, "Say which model."), settings: wrongSettings(settings) }),
  );
  return html`
    <${Dialog} title="Change what ${pool.name} serves" onClose=${onClose} wide>
      <${Form} form=${form} verb="Change" what="change the pool" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("model")}
          label="Model"
          hint=${startedOf(pool).modelHint}
          autocomplete="off"
          spellcheck="false"
          autofocus
        />
        <${TextArea}
          ...${form.bind("settings")}
          label="Engine settings"
          optional
          rows=${4}
          hint=${startedOf(pool).settingsHint}
          spellcheck="false"
        />
        ${
          pool.num_adapters > 0 &&
          form.values.model.trim() !== pool.model &&
          html`
            <${Checkbox}
              ...${form.bind("drop")}
              label="Go on without adapters that do not fit the new base model"
              hint="Without this the change stops before anything moves, and names them."
            />
          `
        }
        <${Notice} title="What will happen">${consequence(pool)}<//>
      <//>
    <//>
  `;
}

function consequence({ name, revision, num_adapters: adapters, replica_bytes: bytes, num_replicas: number }) {
  if (revision === null)
    return `Nothing serves under ${name} yet: the new revision takes the place of the one that is on its way.`;
  const memory = memoryOf(bytes, number);
  const beside = `Replicas of the new revision start beside those of revision ${revision}${memory && `, which take ${memory},`} and take their place once they are ready and have answered. Until then revision ${revision} serves; if the new one fails, it goes on.`;
  return adapters
    ? `${beside} ${adapters === 1 ? "One adapter belongs" : `${adapters} adapters belong`} to the present base: on another base those answer that fit its shapes.`
    : beside;
}

export function ScalePool({ pool, onClose }) {
  const form = useForm(
    { num_replicas: String(pool.num_replicas) },
    async ({ num_replicas: number }) => {
      await post(pathOf(pool.id), { num_replicas: Number(number) });
      invalidate("/pools", "/hosts");
      onClose();
      toast(`${pool.name} is to run ${replicas(Number(number))}`);
    },
    ({ num_replicas: number }) => ({ num_replicas: whole(number, { max: 1000 }) }),
  );
  return html`
    <${Dialog} title="Scale ${pool.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Scale" what="scale the pool" onCancel=${onClose}>
        <${TextField} ...${form.bind("num_replicas")} label="Replicas" type="number" min="0" max="1000" autofocus />
        <${Notice} title="What will happen">${scaled(pool, Number(form.values.num_replicas))}<//>
      <//>
    <//>
  `;
}

function scaled({ num_replicas: now, replica_bytes: bytes, name }, wanted) {
  const more = wanted - now;
  if (!Number.isInteger(wanted) || more === 0) return "Nothing changes.";
  if (wanted === 0)
    return (
      `All replicas end their requests and stop. Nobody answers requests for ${name} and its adapters ` +
      "until it is scaled up."
    );
  if (more < 0)
    return (
      `${replicas(-more)} ${more === -1 ? "ends its" : "end their"} requests and ` +
      `${more === -1 ? "stops" : "stop"}; no request is refused.`
    );
  const memory = memoryOf(bytes, more);
  return `${replicas(more)} more ${more === 1 ? "starts" : "start"}, where there is room${memory && `: ${memory}`}. The present ones go on.`;
}

// A tenant's own keys for other makers' servers: one for each model that takes them. A key is typed, and never shown.

import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty, Notice } from "../../components/feedback.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Time } from "../../components/numbers.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate, useAll } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { given } from "../../lib/rules/checks.js";

const PROVIDER_KEYS_HINT =
  "Keys of its own for servers of other makers. A key is used for this tenant's requests alone, which are " +
  "charged for no tokens; they are counted and limited as before.";

/** A tenant's keys for other makers' servers, shown if one of its models takes such keys or one is left. */
export function ProviderKeys({ project, mayWrite }) {
  const models = useAll(pathOf(project.id, "/models"));
  const keys = useAll(pathOf(project.id, "/provider_keys"));
  const [act, setAct] = useState(null);
  const rows = rowsOf(models.data ?? [], keys.data ?? []);
  if (rows.length === 0) return null;
  const columns = [
    { key: "model", title: "Model" },
    {
      key: "hint",
      title: "Key",
      render: ({ key, own_keys: use }) =>
        key
          ? html`<code>…${key.hint}</code>`
          : html`<span class="faint">${use === "required" ? "none: requests are refused" : "the operator's"}</span>`,
    },
    {
      key: "changed",
      title: "Set",
      value: ({ key }) => key?.changed_at,
      render: ({ key }) => (key ? html`<${Time} at=${key.changed_at} relative />` : "–"),
    },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !mayWrite,
      render: (row) => html`
        <span class="row">
          ${
            row.own_keys !== "none" &&
            html`
              <${Button} small onClick=${() => setAct({ kind: "set", row })}>
                ${row.key ? "Replace" : "Set key"}
              <//>
            `
          }
          ${
            row.key &&
            html`
              <${Button} small kind="danger" onClick=${() => setAct({ kind: "remove", row })}>
                Remove
              <//>
            `
          }
        </span>
      `,
    },
  ];
  const close = () => setAct(null);
  return html`
    <${Section}
      title="Provider keys"
      card
      hint=${PROVIDER_KEYS_HINT}
    >
      <${Table}
        name="provider-keys"
        label="Provider keys"
        columns=${columns}
        rows=${rows}
        rowKey=${({ model }) => model}
        filter=${false}
        empty=${html`<${Empty} icon="keys" title="No key" />`}
      />
      ${act?.kind === "set" && html`<${SetKey} project=${project} row=${act.row} onClose=${close} />`}
      ${act?.kind === "remove" && html`<${RemoveKey} project=${project} row=${act.row} onClose=${close} />`}
    <//>
  `;
}

function rowsOf(models, keys) {
  const keyOf = Object.fromEntries(keys.map((key) => [key.model, key]));
  const taking = models
    .filter(({ name, own_keys: use }) => use !== "none" || keyOf[name])
    .map(({ name, own_keys }) => ({ model: name, own_keys, key: keyOf[name] }));
  const known = new Set(taking.map(({ model }) => model));
  return [
    ...taking,
    ...keys.filter(({ model }) => !known.has(model)).map((key) => ({ model: key.model, own_keys: "none", key })),
  ];
}

function SetKey({ project, row: { model, key }, onClose }) {
  const form = useForm(
    { key: "" },
    async ({ key: typed }) => {
      await post(pathOf(project.id, "/provider_keys"), { model, key: typed.trim() });
      invalidate(pathOf(project.id, "/provider_keys"));
      onClose();
      toast(`Requests to ${model} are sent with this tenant's key`);
    },
    ({ key: typed }) => ({ key: given(typed, "Paste the key.") }),
  );
  return html`
    <${Dialog} title="${key ? "Replace the key" : "Key"} for ${model}" onClose=${onClose}>
      <${Form} form=${form} verb="Save key" what="save the key" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("key")}
          label="Key"
          type="password"
          autocomplete="off"
          spellcheck="false"
          hint="Kept encrypted. Nobody can read it again: the last four characters are shown."
          autofocus
        />
        <${Notice} title="What will happen">
          Within a second this tenant's requests to ${model} are sent with the key, and are charged for no tokens.
        <//>
      <//>
    <//>
  `;
}

function RemoveKey({ project, row: { model, key, own_keys: use }, onClose }) {
  return html`
    <${Confirm}
      title="Remove the key for ${model}?"
      verb="Remove key"
      onClose=${onClose}
      act=${async () => {
        await del(pathOf(project.id, `/provider_keys/${encodeURIComponent(key.id)}`));
        invalidate(pathOf(project.id, "/provider_keys"));
        toast(`The key for ${model} is removed`);
      }}
    >
      <p>
        ${
          use === "required"
            ? `Requests of this tenant to ${model} are refused until another key is set.`
            : `Requests of this tenant to ${model} are sent with the operator's key, and charged for.`
        }
      </p>
    <//>
  `;
}

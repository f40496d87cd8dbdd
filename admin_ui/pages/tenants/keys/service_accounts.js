// The list of a tenant's service accounts, which own keys and are no person.

import { Button } from "../../../components/button.js";
import { Confirm, Dialog } from "../../../components/dialog.js";
import { Form, TextField, useForm } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { toast } from "../../../components/toast.js";
import { del, post } from "../../../lib/api.js";
import { named } from "../../../lib/rules/checks.js";
import { invalidate } from "../../../lib/data.js";
import { plural } from "../../../lib/format/format.js";
import { html, useState } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { isInUse } from "./state.js";

/**
 * The service accounts of a tenant. list: as useList returns it. keys: the project's keys, to count those of each
 * account.
 */
export function ServiceAccounts({ projectId, list, keys, may, onMade }) {
  const [act, setAct] = useState(null);
  const close = () => setAct(null);
  const owned = (id) => keys.filter((key) => isInUse(key) && key.owner?.service_account?.id === id).length;
  const columns = [
    { key: "name", title: "Name" },
    { key: "keys", title: "Keys in use", format: "count", value: ({ id }) => owned(id) },
    { key: "created_at", title: "Created", format: "time" },
    {
      key: "remove",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !may("keys.write"),
      render: (row) => html`
        <${Button}
          kind="quiet"
          small
          icon="trash"
          label="Delete ${row.name}"
          onClick=${() => setAct({ remove: row })}
        />
      `,
    },
  ];
  return html`
    <${Section}
      title="Service accounts"
      hint="For programs: their keys do not end with a person's leaving."
      actions=${
        may("keys.write") &&
        html`
          <${Button} icon="plus" onClick=${() => setAct({ create: true })}>
            New service account
          <//>
        `
      }
    >
      <${Table}
        name="accounts"
        label="Service accounts"
        columns=${columns}
        rows=${list.items}
        error=${list.error}
        reload=${list.reload}
        hasMore=${list.hasMore}
        more=${list.more}
        filter=${false}
        empty=${html`<p class="hint">None yet. One is made together with its first key.</p>`}
      />
      ${
        act?.create &&
        html`<${NewAccount} projectId=${projectId} onMade=${(made) => (close(), onMade(made))} onClose=${close} />`
      }
      ${
        act?.remove &&
        html`
          <${Confirm}
            title="Delete ${act.remove.name}?"
            verb="Delete service account"
            name=${act.remove.name}
            onClose=${close}
            act=${async () => {
              await del(pathOf(projectId, `/service_accounts/${act.remove.id}`));
              invalidate(pathOf(projectId));
              toast(`${act.remove.name} is deleted, its keys are revoked`);
            }}
          >
            <p>
              ${plural(owned(act.remove.id), "key")} of it ${owned(act.remove.id) === 1 ? "is" : "are"} revoked for
              good: programs that use them are refused within a second.
            </p>
          <//>
        `
      }
    <//>
  `;
}

function NewAccount({ projectId, onMade, onClose }) {
  const form = useForm(
    { name: "" },
    async ({ name }) => {
      const made = await post(pathOf(projectId, "/service_accounts"), { name });
      invalidate(pathOf(projectId));
      onMade({ ...made.api_key, scopes: ["inference"], models: null, project_id: projectId });
    },
    ({ name }) => ({ name: named(name) }),
  );
  return html`
    <${Dialog} title="New service account" onClose=${onClose}>
      <${Form} form=${form} verb="Create" what="create the service account" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="Of the program, such as “nightly-reports”. It comes with a key that may use models."
          maxlength="64"
          autofocus
          autocomplete="off"
        />
      <//>
    <//>
  `;
}

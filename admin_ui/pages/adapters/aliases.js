// A project's own names for versions of an adapter, which programs call and which it moves from version to version.

import { Badge } from "../../components/badge.js";
import { Button, CopyButton } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty } from "../../components/feedback.js";
import { Form, Select, TextField, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { given, modelName } from "../../lib/rules/checks.js";
import { invalidate, useApi, useList } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { can, useSession } from "../../lib/session.js";
import { pathOf } from "./paths.js";

export function Aliases({ adapter }) {
  const base = `/projects/${encodeURIComponent(adapter.project_id)}/aliases`;
  const list = useList(base, {}, { limit: 100 });
  const [asking, ask] = useState(null);
  const close = () => ask(null);
  const mayWrite = can("adapters.write", adapter.project_id);
  const rows = list.items?.filter((alias) => alias.adapter === adapter.name);
  const columns = [
    {
      key: "name",
      title: "Alias",
      render: ({ name }) => html`
        <span class="code">
          <code>${name}</code>
          <${CopyButton} text=${name} what="model id" />
        </span>
      `,
    },
    {
      key: "version",
      title: "Points at",
      render: ({ version }) => html`
        <${Badge} tone="info">v${version}<//>${" "}
        ${version === adapter.version && html`<span class="faint">the current one</span>`}
      `,
    },
    { key: "moved_at", title: "Since", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !mayWrite,
      render: (row) => html`
        <span class="row">
          <${Button} small onClick=${() => ask({ move: row })}>
            Move
          <//>
          <${Button} small icon="trash" label="Delete ${row.name}" onClick=${() => ask({ remove: row })} />
        </span>
      `,
    },
  ];
  const create =
    mayWrite &&
    html`
      <${Button} small icon="plus" onClick=${() => ask({ create: true })}>
        New alias
      <//>
    `;
  const hint =
    "Names such as “production” that programs call as a model id. They stay on their version when " +
    "another one is promoted.";
  return html`
    <${Section} title="Aliases" hint=${hint} actions=${create}>
      <${Table}
        name="aliases"
        label="Aliases"
        columns=${columns}
        rows=${rows}
        error=${list.error}
        reload=${list.reload}
        hasMore=${list.hasMore}
        more=${list.more}
        what="load the aliases"
        filter=${false}
        empty=${html`<${Empty}
            icon="adapters"
            title="No alias points here"
            command=${mayWrite ? command(adapter) : undefined}
            action=${
              mayWrite &&
              html`
                <${Button} kind="primary" onClick=${() => ask({ create: true })}>
                  New alias
                <//>
              `
            }
          >
            An alias holds programs to one version, until you move it.
          <//>`}
      />
      ${asking?.create && html`<${Point} title="New alias" adapter=${adapter} onClose=${close} base=${base} />`}
      ${
        asking?.move &&
        html`
          <${Point}
            title="Move ${asking.move.name}"
            alias=${asking.move}
            adapter=${adapter}
            onClose=${close}
            base=${base}
          />
        `
      }
      ${
        asking?.remove &&
        html`
          <${Confirm}
            title="Delete the alias ${asking.remove.name}?"
            verb="Delete the alias"
            onClose=${close}
            act=${async () => {
              await del(`${base}/${encodeURIComponent(asking.remove.name)}`);
              invalidate(base);
              toast(`The alias ${asking.remove.name} is deleted`);
            }}
          >
            <p>
              Programs that call <code>${asking.remove.name}</code> are refused with “model not found” until it is
              made again. Version ${asking.remove.version} itself stays.
            </p>
          <//>
        `
      }
    <//>
  `;
}

const command = ({
  project_id: id,
  name,
  version,
}) => `curl ${window.location.origin}/v1/organization/projects/${id}/aliases \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"name": "production", "adapter": "${name}", "version": ${version ?? 1}}'`;

function Point({ title, alias, adapter, base, onClose }) {
  const versions = useApi(`${pathOf(adapter.project_id, adapter.name)}/versions`, { limit: 100 });
  const ready = (versions.data?.data ?? []).filter(({ state }) => state === "ready");
  const { who } = useSession();
  const chosen = (version) => version || String(ready[0]?.version ?? "");
  const form = useForm(
    { name: "", version: String(alias?.version ?? adapter.version ?? "") },
    async ({ name, version }) => {
      const target = { adapter: adapter.name, version: Number(chosen(version)) };
      const made = await (alias
        ? post(`${base}/${encodeURIComponent(alias.name)}`, target)
        : post(base, { name, ...target }));
      invalidate(base);
      onClose();
      toast(`${made.name} points at version ${made.version}`);
    },
    ({ name, version }) => ({
      name: alias
        ? undefined
        : (modelName(name) ?? (name === who.model ? "That is what the base model is called." : undefined)),
      version: given(chosen(version), "No version is ready yet."),
    }),
  );
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <${Form}
        form=${form}
        verb=${alias ? "Move" : "Create"}
        what=${alias ? "move the alias" : "create the alias"}
        onCancel=${onClose}
      >
        ${
          alias
            ? html`
              <p>
                Requests for <code>${alias.name}</code> that come within a second may still get version${" "}
                ${alias.version}; then all get the other one.
              </p>
            `
            : html`
              <${TextField}
                ...${form.bind("name")}
                label="Name"
                hint="What programs give as the model: lower-case letters, digits, dots, dashes and underlines."
                autocomplete="off"
                spellcheck="false"
                autofocus
              />
            `
        }
        <${Select}
          ...${form.bind("version")}
          value=${chosen(form.values.version)}
          label="Version"
          options=${ready.map(({ version, current }) => [
            String(version),
            `Version ${version}${current ? ", current" : ""}`,
          ])}
        />
      <//>
    <//>
  `;
}

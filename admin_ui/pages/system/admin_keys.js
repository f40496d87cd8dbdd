// Operator keys: they open the admin API for programs, and no model.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Choices } from "../../components/choices.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Command, Empty, Notice } from "../../components/feedback.js";
import { Form, Select, TextArea, TextField, useForm } from "../../components/form.js";
import { Time } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Secret } from "../../components/secret.js";
import { Table } from "../../components/table.js";
import { Choice } from "../../components/tabs.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { named } from "../../lib/rules/checks.js";
import { invalidate, useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { now } from "../../lib/format/time.js";
import { isInUse, ownerOf, stateOf } from "../tenants/keys/state.js";
import { SystemTabs } from "./tabs.js";

const SCOPES = [
  ["admin_read", "Read", "Usage, limits, tenants, people"],
  ["admin_write", "Change", "Everything that its owner may change"],
];
const EXPIRIES = [
  ["30", "In 30 days"],
  ["90", "In 90 days"],
  ["365", "In a year"],
  ["", "Never"],
];
const DAY_S = 86_400;

export default function AdminKeys() {
  const list = useList("/admin_api_keys", {}, { limit: 100 });
  const [show, setShow] = useQuery("show", "used");
  const [act, setAct] = useState(null);
  const close = () => setAct(null);
  const mayWrite = can("admin_keys.write");
  const used = list.items?.filter(isInUse);
  const create =
    mayWrite &&
    html`
      <${Button} kind="primary" icon="plus" onClick=${() => setAct({ create: true })}>
        New operator key
      <//>
    `;
  const columns = [
    { key: "name", title: "Name" },
    { key: "redacted_value", title: "Key", sort: false, render: (key) => html`<code>${key.redacted_value}</code>` },
    { key: "state", title: "State", value: stateOf, render: (key) => html`<${Badge} dot>${stateOf(key)}<//>` },
    {
      key: "scopes",
      title: "May",
      value: ({ scopes }) => scopes.map((scope) => scope.replace("admin_", "")).join(", "),
    },
    { key: "owner", title: "Owner", value: ownerOf },
    {
      key: "last_used_at",
      title: "Last used",
      render: ({ last_used_at: at }) => html`<${Time} at=${at} relative none="not used yet" />`,
    },
    { key: "expires_at", title: "Expires", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !mayWrite,
      render: (key) =>
        isInUse(key) &&
        html`
          <${Button} small onClick=${() => setAct({ revoke: key })} aria-label="Revoke ${key.name}">
            Revoke
          <//>
        `,
    },
  ];
  return html`
    <${Page}
      title="System"
      tabs=${html`<${SystemTabs} />`}
      lead=${
        used &&
        html`<b>${plural(used.length, "operator key")}</b> ${used.length === 1 ? "opens" : "open"} the admin API.`
      }
      actions=${create}
    >
      <${Table}
        label="Operator keys"
        columns=${columns}
        rows=${show === "all" ? list.items : used}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        tools=${html`<${Choice}
            label="Which keys"
            value=${show}
            onValue=${setShow}
            options=${[["used", "In use"], ["all", "All"]]}
          />`}
        empty=${html`<${Empty} icon="keys" title="No operator key is in use" action=${create}>
            Scripts and deployments reach the admin API with one.
          <//>`}
      />
      ${act?.create && html`<${NewKey} onMade=${(made) => setAct({ made })} onClose=${close} />`}
      ${act?.made && html`<${Made} made=${act.made} onClose=${close} />`}
      ${
        act?.revoke &&
        html`
          <${Confirm}
            title="Revoke ${act.revoke.name}?"
            verb="Revoke key"
            name=${act.revoke.name}
            onClose=${close}
            act=${async () => {
              await del(`/admin_api_keys/${act.revoke.id}`);
              invalidate("/admin_api_keys");
              toast(`${act.revoke.name} is revoked`);
            }}
          >
            <p>Scripts and deployments that use it are refused within a second, for good.</p>
          <//>
        `
      }
    <//>
  `;
}

function NewKey({ onMade, onClose }) {
  const form = useForm(
    { name: "", scopes: ["admin_read"], expires_at: "90", ip_allowlist: "" },
    async (values) => {
      const networks = values.ip_allowlist.split(/[\s,]+/).filter(Boolean);
      const made = await post("/admin_api_keys", {
        name: values.name.trim(),
        scopes: values.scopes,
        expires_at: values.expires_at ? now() + Number(values.expires_at) * DAY_S : null,
        ip_allowlist: networks.length ? networks : null,
      });
      invalidate("/admin_api_keys");
      onMade(made);
    },
    ({ name, scopes }) => ({ name: named(name), scopes: scopes.length ? undefined : "Choose what it may do." }),
  );
  return html`
    <${Dialog} title="New operator key" onClose=${onClose}>
      <${Form} form=${form} verb="Create key" what="create the key" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="Of the program, such as “terraform”. The key never does more than you may."
          maxlength="64"
          autofocus
          autocomplete="off"
        />
        <${Choices} ...${form.bind("scopes")} label="It may" options=${SCOPES} />
        <${Select} ...${form.bind("expires_at")} label="Expires" options=${EXPIRIES} />
        <${TextArea}
          ...${form.bind("ip_allowlist")}
          label="Networks"
          optional
          rows=${2}
          placeholder="203.0.113.0/24"
          hint="Addresses or networks that it may be used from, one a line."
          spellcheck="false"
        />
      <//>
    <//>
  `;
}

function Made({ made, onClose }) {
  const curl = (secret) =>
    `curl ${window.location.origin}/v1/organization/projects \\\n  -H "Authorization: Bearer ${secret}"`;
  return html`
    <${Dialog}
      title="Your new operator key"
      onClose=${onClose}
      locked
      wide
      footer=${html`<${Button} kind="primary" onClick=${onClose}>
          I have stored it
        <//>`}
    >
      <div class="stack">
        <${Notice} tone="warn" title="This key is shown once">
          Store it in a secret manager now. Whoever has it may do what it may.
        <//>
        <div class="field">
          <span class="label">${made.name}</span>
          <${Secret} value=${made.value} label="Operator key" />
        </div>
        <div class="field">
          <span class="label">Try it in a terminal</span>
          <${Command} label="curl line" text=${curl(`${made.value.slice(0, 8)}••••••••`)} copied=${curl(made.value)} />
          <p class="hint">What is copied has the key in it.</p>
        </div>
      </div>
    <//>
  `;
}

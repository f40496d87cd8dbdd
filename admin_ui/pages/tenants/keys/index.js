// A tenant's API keys: what opens its models, and who has them.

import { Badge } from "../../../components/badge.js";
import { Button, Code } from "../../../components/button.js";
import { Confirm, Dialog } from "../../../components/dialog.js";
import { Empty } from "../../../components/feedback.js";
import { Icon } from "../../../components/icons.js";
import { Menu } from "../../../components/menu.js";
import { Time } from "../../../components/numbers.js";
import { Facts } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { Choice } from "../../../components/tabs.js";
import { toast } from "../../../components/toast.js";
import { del, post } from "../../../lib/api.js";
import { invalidate, useApi, useList } from "../../../lib/data.js";
import { plural } from "../../../lib/format/format.js";
import { html, useState } from "../../../lib/html.js";
import { useShortcut } from "../../../lib/rules/keys.js";
import { mayIn, pathOf } from "../../../lib/projects_api.js";
import { here, setQuery, useQuery } from "../../../lib/router.js";
import { Tenant } from "../frame.js";
import { ChangeKey, NewKey, RotateKey } from "./forms.js";
import { ServiceAccounts } from "./service_accounts.js";
import { KeyShownOnce } from "./shown_once.js";
import { endsSoon, isInUse, ownerOf, stateOf } from "./state.js";

export default function Keys({ params }) {
  const id = params.project;
  const list = useList(pathOf(id, "/api_keys"), {}, { limit: 100 });
  const accounts = useList(pathOf(id, "/service_accounts"), {}, { limit: 100 });
  const [show, setShow] = useQuery("show", "used");
  const [chosen] = useQuery("key");
  const [act, setAct] = useState(null);
  const close = () => setAct(null);
  const rows = list.items?.filter((key) => show === "all" || isInUse(key));
  useShortcut("n", "New key", () => mayIn(id, { status: "active" })("keys.write") && setAct({ what: "create" }));
  const create = (may) =>
    may("keys.write") &&
    html`
      <${Button} kind="primary" icon="plus" onClick=${() => setAct({ what: "create" })}>
        New key
      <//>
    `;
  return html`
    <${Tenant}
      params=${params}
      lead=${list.items && html`<${Lead} keys=${list.items} />`}
      actions=${(_, may) => create(may)}
    >
      ${(project, may) => html`
        <${Table}
          label="API keys"
          columns=${columnsFor(may, setAct)}
          rows=${rows}
          href=${(key) => here({ key: key.id })}
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
          empty=${html`<${NoKey}
              project=${project}
              action=${create(may)}
              hidden=${(list.items?.length ?? 0) > 0}
              onAll=${() => setShow("all")}
            />`}
        />
        <${ServiceAccounts}
          projectId=${id}
          list=${accounts}
          keys=${list.items ?? []}
          may=${may}
          onMade=${(made) => setAct({ what: "made", made })}
        />
        ${
          act &&
          html`
            <${Act}
              act=${act}
              projectId=${id}
              accounts=${accounts.items ?? []}
              onMade=${(made) => setAct({ what: "made", made })}
              onClose=${close}
            />
          `
        }
        ${chosen && html`<${KeyDrawer} projectId=${id} keyId=${chosen} may=${may} setAct=${setAct} />`}
      `}
    <//>
  `;
}

function Lead({ keys }) {
  const active = keys.filter((key) => stateOf(key) === "active");
  const soon = keys.filter(endsSoon);
  if (active.length === 0) return html`<b>No key</b> opens this tenant's models.`;
  return html`
    <b>${plural(active.length, "key")}</b> ${active.length === 1 ? "opens" : "open"} this tenant's models
    ${soon.length ? html`, <b>${soon.length}</b> of them ${soon.length === 1 ? "ends" : "end"} within a week` : ""}
    .
  `;
}

function columnsFor(may, setAct) {
  return [
    { key: "name", title: "Name" },
    {
      key: "redacted_value",
      title: "Key",
      sort: false,
      render: (key) => html`<code>${key.redacted_value}</code>`,
    },
    { key: "state", title: "State", value: stateOf, render: (key) => html`<${State} apiKey=${key} />` },
    { key: "scopes", title: "May", value: ({ scopes }) => scopes.join(", ") },
    { key: "owner", title: "Owner", value: ownerOf },
    {
      key: "last_used_at",
      title: "Last used",
      render: ({ last_used_at: at }) => html`<${Time} at=${at} relative none="not used yet" />`,
    },
    {
      key: "expires_at",
      title: "Expires",
      render: (key) => html`
        <span class=${endsSoon(key) ? "warn" : ""}>
          <${Time} at=${key.expires_at} relative=${endsSoon(key)} />
        </span>
      `,
    },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !may("keys.write"),
      render: (key) =>
        isInUse(key) &&
        html`
          <${Menu}
            label="Actions on ${key.name}"
            align="end"
            look="button quiet small icon-only"
            button=${html`<${Icon} name="more" />`}
            items=${actions(key, setAct)}
          />
        `,
    },
  ];
}

function State({ apiKey }) {
  return html`
    <span class="row">
      <${Badge} dot>${stateOf(apiKey)}<//>
      ${
        apiKey.previous_secret_expires_at * 1000 > Date.now() &&
        html`
          <${Badge} tone="info" title="The secret before the last rotation still works">
            two secrets
          <//>
        `
      }
    </span>
  `;
}

function actions(key, setAct) {
  const item = (title, what, icon, more) => ({
    title,
    icon,
    onClick: () => setAct({ what, key }),
    ...more,
  });
  return [
    item("Change …", "change", "keys"),
    item("Rotate …", "rotate", "refresh"),
    key.suspended_at ? item("Resume", "resume", "play") : item("Suspend …", "suspend", "pause"),
    null,
    item("Revoke …", "revoke", "trash", { danger: true }),
  ];
}

function Act({ act: { what, key, made }, projectId, accounts, onMade, onClose }) {
  const path = key && pathOf(projectId, `/api_keys/${key.id}`);
  const done = (text) => {
    invalidate(pathOf(projectId, "/api_keys"));
    toast(text);
  };
  if (what === "create")
    return html`<${NewKey} projectId=${projectId} accounts=${accounts} onMade=${onMade} onClose=${onClose} />`;
  if (what === "change") return html`<${ChangeKey} projectId=${projectId} apiKey=${key} onClose=${onClose} />`;
  if (what === "rotate")
    return html`<${RotateKey} projectId=${projectId} apiKey=${key} onMade=${onMade} onClose=${onClose} />`;
  if (what === "made") return html`<${KeyShownOnce} apiKey=${made} title="Your new key" onClose=${onClose} />`;
  if (what === "resume") {
    return html`
      <${Confirm}
        title="Resume ${key.name}?"
        verb="Resume key"
        danger=${false}
        onClose=${onClose}
        act=${async () => (await post(`${path}/resume`), done(`${key.name} works again`))}
      >
        <p>Programs that hold it can use this tenant's models again.</p>
      <//>
    `;
  }
  if (what === "suspend") {
    return html`
      <${Confirm}
        title="Suspend ${key.name}?"
        verb="Suspend key"
        onClose=${onClose}
        act=${async () => (await post(`${path}/suspend`), done(`${key.name} is suspended`))}
      >
        <p>
          Every gateway refuses it within a second. Requests that run end as they would. It works again once
          it is resumed.
        </p>
      <//>
    `;
  }
  return html`
    <${Confirm}
      title="Revoke ${key.name}?"
      verb="Revoke key"
      name=${key.name}
      onClose=${onClose}
      act=${async () => (await del(path), done(`${key.name} is revoked`))}
    >
      <p>
        Programs that use it are refused within a second, for good. Its usage and cost stay on the books.
      </p>
    <//>
  `;
}

function KeyDrawer({ projectId, keyId, may, setAct }) {
  const { data: key, error } = useApi(pathOf(projectId, `/api_keys/${encodeURIComponent(keyId)}`));
  const close = () => setQuery({ key: null });
  const open = (act) => (close(), setAct(act));
  const at = (when, none = "never") => html`<${Time} at=${when} none=${none} />`;
  return html`
    <${Dialog} title=${key?.name ?? "API key"} side onClose=${close}>
      ${error && html`<p>${error.message}</p>`}
      ${
        key &&
        html`
          <div class="stack">
            <div class="row">
              <${State} apiKey=${key} />
              ${
                may("keys.write") &&
                isInUse(key) &&
                actions(key, open)
                  .filter(Boolean)
                  .map(
                    ({ title, icon, onClick, danger }) => html`
                      <${Button}
                        key=${title}
                        small
                        icon=${icon}
                        kind=${danger ? "danger" : "secondary"}
                        onClick=${onClick}
                      >
                        ${title}
                      <//>
                    `,
                  )
              }
            </div>
            <${Facts}
              rows=${[
                ["Key", html`<code>${key.redacted_value}</code>`],
                ["Id", html`<${Code} text=${key.id} what="key id" />`],
                ["Owner", ownerOf(key)],
                ["May", key.scopes.join(", ")],
                ["Models", key.models ? key.models.join(", ") : "all"],
                ["Networks", key.ip_allowlist ? key.ip_allowlist.join(", ") : "any"],
                ["Created", at(key.created_at)],
                ["Last used", at(key.last_used_at, "not used yet")],
                ["Expires", at(key.expires_at)],
                ["Suspended", key.suspended_at ? at(key.suspended_at) : undefined],
                ["Revoked", key.revoked_at ? at(key.revoked_at) : undefined],
                [
                  "Old secret works until",
                  key.previous_secret_expires_at ? at(key.previous_secret_expires_at) : undefined,
                ],
              ]}
            />
            ${
              may("billing.read") &&
              html`
                <p class="row">
                  <a href="/admin/requests?project=${projectId}&key=${key.id}">Its requests</a>
                  <a href="/admin/usage?project=${projectId}&key=${key.id}">Its usage</a>
                </p>
              `
            }
          </div>
        `
      }
    <//>
  `;
}

function NoKey({ project, action, hidden, onAll }) {
  if (hidden)
    return html`
      <${Empty}
        icon="keys"
        title="No key is in use"
        action=${html`<div class="row">
            ${action}
            <${Button} onClick=${onAll}>Show ended ones<//>
          </div>`}
      />
    `;
  const command = `curl ${window.location.origin}/v1/organization${pathOf(project.id, "/api_keys")} \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"name": "production"}'`;
  return html`
    <${Empty} icon="keys" title="No key yet" command=${command} action=${action}>
      Programs open this tenant's models with a key.
    <//>
  `;
}

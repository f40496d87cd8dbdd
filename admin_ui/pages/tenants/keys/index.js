// The page of a tenant's API keys, by which programs call its models, with their owners.

import { Button } from "../../../components/button.js";
import { Empty } from "../../../components/feedback.js";
import { Table } from "../../../components/table.js";
import { Choice } from "../../../components/tabs.js";
import { useList } from "../../../lib/data.js";
import { plural } from "../../../lib/format/format.js";
import { html, useState } from "../../../lib/html.js";
import { useShortcut } from "../../../lib/rules/keys.js";
import { mayIn, pathOf } from "../../../lib/projects_api.js";
import { here, useQuery } from "../../../lib/router.js";
import { Tenant } from "../frame.js";
import { ServiceAccounts } from "./service_accounts.js";
import { endsSoon, isInUse, stateOf } from "./state.js";
import { columnsFor } from "./columns.js";
import { Act } from "./dialogs.js";
import { KeyDrawer } from "./drawer.js";

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

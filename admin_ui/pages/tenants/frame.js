// The frame around all views of one tenant: its name and state, and the tabs that the reader may open.

import { Button } from "../../components/button.js";
import { Loaded, Notice } from "../../components/feedback.js";
import { Page } from "../../components/page.js";
import { Tabs } from "../../components/tabs.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate, useApi } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { mayIn, pathOf } from "../../lib/projects_api.js";
import { to } from "../../lib/router.js";
import { isMember } from "../../lib/session.js";
import { day } from "../../lib/format/time.js";

const VIEWS = [
  ["Overview", "", "projects.read"],
  ["Keys", "keys", "keys.read"],
  ["Limits", "limits", "limits.read"],
  ["Members", "members", "members.read"],
  ["Adapters", "adapters", "adapters.read"],
  ["Routes", "routes", "routes.read"],
  ["Batches", "batches", "billing.read"],
  ["Refusals", "refusals", "limits.read"],
  ["Changes", "changes", "audit.read"],
  ["Settings", "settings", "content.write"],
];

/**
 * The page of a tenant. lead, actions, children: functions of (project, may), called once the project is loaded.
 * may(permission): whether the reader has a permission for this tenant.
 */
export function Tenant({ params, lead, actions, children }) {
  const id = params.project;
  const project = useApi(pathOf(id));
  const may = mayIn(id, project.data);
  const tabs = VIEWS.filter(([, , permission]) =>
    permission === "content.write" ? mayIn(id, { status: "active" })(permission) : may(permission),
  );
  const shown = (part) => (typeof part === "function" ? project.data && part(project.data, may) : part);
  return html`
    <${Page}
      title=${project.data?.name ?? "Tenant"}
      crumbs=${isMember() ? [] : [["Tenants", "/admin/tenants"]]}
      lead=${shown(lead)}
      actions=${shown(actions)}
      tabs=${html`<${Tabs}
          label="Views of this tenant"
          tabs=${tabs.map(([title, view]) => [title, view ? to("tenants", id, view) : to("tenants", id)])}
        />`}
    >
      <${Loaded} from=${project} what="load this tenant">
        ${(data) => html`
          <${State} project=${data} may=${may} />
          ${children(data, may)}
        `}
      <//>
    <//>
  `;
}

function State({ project, may }) {
  if (project.status === "archived") {
    const gone = project.purge_after
      ? ` Its adapters and stored content go for good after ${day(project.purge_after)}.`
      : "";
    return html`
      <${Notice} tone="warn" title="This tenant was archived on ${day(project.archived_at)}">
        Its keys are dead and nothing in it can be changed.${gone}
      <//>
    `;
  }
  if (project.status !== "suspended") return null;
  const resume = async () => {
    await post(pathOf(project.id, "/resume"));
    invalidate("/projects");
    toast(`${project.name} is resumed: its keys work again`);
  };
  return html`
    <${Notice}
      tone="warn"
      title="This tenant is suspended"
      action=${
        may("projects.write") &&
        html`
          <${Button} small onClick=${resume}>
            Resume
          <//>
        `
      }
    >
      Every gateway refuses its keys until it is resumed.
    <//>
  `;
}

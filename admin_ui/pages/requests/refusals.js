// The page of requests that were refused before they ran: of all tenants, or of the chosen one.

import { Page } from "../../components/page.js";
import { html } from "../../lib/html.js";
import { useProjectId } from "../../lib/projects.js";
import { pathOf } from "../../lib/projects_api.js";
import { RefusalLead, Refusals } from "./refused.js";

export default function AllRefusals() {
  const projectId = useProjectId();
  const path = projectId ? pathOf(projectId, "/refusals") : "/refusals";
  return html`
    <${Page} title="Refusals" crumbs=${[["Requests", "/admin/requests"]]} lead=${html`<${RefusalLead} path=${path} />`}>
      <${Refusals} path=${path} projectId=${projectId} />
    <//>
  `;
}

// The page of one tenant's requests that were refused before they ran.

import { html } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { Tenant } from "./frame.js";
import { Refusals, RefusalLead } from "../requests/refused.js";

export default function TenantRefusals({ params }) {
  const path = pathOf(params.project, "/refusals");
  return html`
    <${Tenant} params=${params} lead=${html`<${RefusalLead} path=${path} />`}>
      ${() => html`<${Refusals} path=${path} projectId=${params.project} />`}
    <//>
  `;
}

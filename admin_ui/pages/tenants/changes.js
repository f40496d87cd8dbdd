// The audit log of one tenant: changes by its own people and keys, and by the operator.

import { html } from "../../lib/html.js";
import { useChanges } from "../system/audit.js";
import { Tenant } from "./frame.js";

export default function TenantChanges({ params }) {
  return html`<${Tenant} params=${params}>${() => html`<${Changes} projectId=${params.project} />`}<//>`;
}

function Changes({ projectId }) {
  const { lead, view } = useChanges(projectId);
  return html`
    <p>${lead}</p>
    ${view}
  `;
}

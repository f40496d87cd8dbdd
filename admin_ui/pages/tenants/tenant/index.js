// The overview of one tenant: its traffic, its cost, limits that are almost used up, its adapters and keys.

import { money } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { useMonthlyCost } from "../../../lib/projects_api.js";
import { Alerts } from "../../overview/alerts.js";
import { Tenant } from "../frame.js";
import { Adapters, Keys, Limits } from "./few.js";
import { Traffic } from "./traffic.js";

export default function Overview({ params }) {
  const id = params.project;
  const spend = useMonthlyCost(id);
  const lead = (project) =>
    project.status === "active" &&
    spend.nanos !== undefined &&
    html`<b>${money(spend.nanos, spend.currency)}</b> so far this month.`;
  return html`
    <${Tenant} params=${params} lead=${lead}>
      ${(_project, may) => html`
        <${Alerts} projectId=${id} />
        ${may("billing.read") && html`<${Traffic} id=${id} spend=${spend} />`}
        <div class="grid-3">
          ${may("limits.read") && html`<${Limits} id=${id} may=${may} currency=${spend.currency} />`}
          ${may("adapters.read") && html`<${Adapters} id=${id} may=${may} />`}
          ${may("keys.read") && html`<${Keys} id=${id} may=${may} />`}
        </div>
      `}
    <//>
  `;
}

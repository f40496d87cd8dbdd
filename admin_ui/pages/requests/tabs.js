// The tabs of the pages of requests: those that ran, and those that were refused before.

import { Tabs } from "../../components/tabs.js";
import { html } from "../../lib/html.js";
import { canSomewhere } from "../../lib/session.js";

export function RequestTabs() {
  if (!canSomewhere("limits.read")) return null;
  return html`
    <${Tabs}
      label="Requests"
      tabs=${[["Recent", "/admin/requests"], ["Refused", "/admin/refusals"]]}
    />
  `;
}

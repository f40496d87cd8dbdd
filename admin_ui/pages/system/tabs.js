// The tabs of the system's pages, as far as the reader may see them.

import { Tabs } from "../../components/tabs.js";
import { html } from "../../lib/html.js";
import { can } from "../../lib/session.js";

export function SystemTabs() {
  const tabs = [
    ["Backends", "/admin/system", "organization.read"],
    ["Reconciliation", "/admin/system/reconciliation", "organization.read"],
    ["Status", "/admin/system/status", "organization.read"],
    ["People", "/admin/system/users", "users.read"],
    ["Operator keys", "/admin/system/admin-keys", "admin_keys.read"],
    ["Limits", "/admin/system/limits", "limits.read"],
    ["Webhooks", "/admin/system/webhooks", "organization.read"],
    ["Audit log", "/admin/system/audit", "audit.read"],
  ];
  return html`
    <${Tabs}
      label="System"
      tabs=${tabs.filter(([, , permission]) => can(permission)).map(([title, href]) => [title, href])}
    />
  `;
}

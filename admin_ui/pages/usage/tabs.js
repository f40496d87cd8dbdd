// The tabs of the pages of usage and billing, as far as the reader may see them.

import { Tabs } from "../../components/tabs.js";
import { html } from "../../lib/html.js";
import { can } from "../../lib/session.js";

export function UsageTabs() {
  const all = can("billing.read");
  const tabs = [
    ["Explore", "/admin/usage"],
    [all ? "Periods" : "Invoices", "/admin/usage/periods"],
    ["Credits", "/admin/usage/credits"],
    all && ["Prices", "/admin/usage/prices"],
    ["Exports", "/admin/usage/exports"],
  ];
  return html`<${Tabs} label="Usage and billing" tabs=${tabs.filter(Boolean)} />`;
}

// The page of exports: files of a month or a day, to download now or to have delivered on schedule.

import { Page } from "../../components/page.js";
import { html } from "../../lib/html.js";
import { can } from "../../lib/session.js";
import { Deliveries } from "./deliveries.js";
import { Download } from "./download.js";
import { UsageTabs } from "./tabs.js";

export default function Exports() {
  return html`
    <${Page}
      title="Usage"
      lead="Every row of a month or a day as a ZIP file, with a manifest that its sums can be checked against."
      tabs=${html`<${UsageTabs} />`}
    >
      <${Download} />
      ${can("billing.read") && html`<${Deliveries} />`}
    <//>
  `;
}

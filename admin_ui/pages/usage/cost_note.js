// What stands in a chart of costs where requests cost nothing.

import { useAll } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { can } from "../../lib/session.js";

/** rows: of `summed`. Undefined where nothing ran. Who sees the price book is told whether there were prices then. */
export function useCostNote(rows) {
  const versions = useAll(can("billing.read") ? "/prices" : null).data;
  const last = rows?.findLast(({ num_requests: requests }) => requests > 0);
  if (!last) return undefined;
  if (!versions?.every(({ effective_at: from }) => from > last.at)) return "These requests cost nothing";
  return html`
    <span>
      There were no prices when these requests ran.
      ${
        can("billing.write") &&
        html`
          ${" "}
          <a href="/admin/usage/prices">Open the price book</a>
        `
      }
    </span>
  `;
}

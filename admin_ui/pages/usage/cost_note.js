// The note in place of a chart of costs if requests cost nothing.

import { useAll } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { can } from "../../lib/session.js";

/**
 * Return why requests cost nothing; undefined without requests. rows: the result of `summed`. Readers of the price book
 * are told whether there were prices at that time.
 */
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

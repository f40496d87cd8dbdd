// The sentence with the explorer's totals, also where there are none.

import { Button } from "../../../components/button.js";
import { Empty } from "../../../components/feedback.js";
import { Money, Num } from "../../../components/numbers.js";
import { sumOf } from "../../../lib/buckets.js";
import { plural } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { setQuery } from "../../../lib/router.js";
import { can } from "../../../lib/session.js";
import { GROUPS } from "./data.js";

export function Lead({ sums, currency, range }) {
  const where = range.name ? `the ${range.label.toLowerCase()}` : range.label;
  const [cost, requests] = [sumOf(sums, "cost_nanos"), sumOf(sums, "num_requests")];
  return html`
    <b>
      <${Money} nanos=${cost} currency=${currency} />
    </b>${" "}
    for ${plural(requests, "request")} and${" "}
    <${Num} value=${sumOf(sums, "input_tokens") + sumOf(sums, "output_tokens")} kind="tokens" /> tokens in${" "}
    ${where}.
    ${
      cost === 0 &&
      requests > 0 &&
      can("billing.read") &&
      html`
        ${" "}
        Nothing costs until there are <a href="/admin/usage/prices">prices</a>.
      `
    }
  `;
}

export function Nothing({ range, filters }) {
  const isNarrow = GROUPS.some(([, , name]) => name !== "project" && filters[name]);
  const command = `curl "${window.location.origin}/v1/organization/traffic?start_time=${range.start}" \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY"`;
  return html`
    <${Empty}
      icon="usage"
      title="No usage in ${range.name ? `the ${range.label.toLowerCase()}` : range.label}"
      command=${isNarrow ? undefined : command}
      action=${
        isNarrow &&
        html`
          <${Button} onClick=${() => setQuery({ model: null, adapter: null, key: null })}>
            Show all usage
          <//>
        `
      }
    >
      Requests count here a second or two after they end. Scripts get the same numbers from the API.
    <//>
  `;
}

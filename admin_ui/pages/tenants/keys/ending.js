// The API keys that would be revoked together with their owner.

import { html } from "../../../lib/html.js";
import { isInUse } from "./state.js";

/**
 * A sentence on these keys, and their list. list: the person's keys, as useAll returns them. where: " here" for the
 * keys of one tenant. ofWhom(key): the tenant of a key, if there may be several.
 */
export function EndingKeys({ list, where = "", ofWhom }) {
  if (list.loading) return html`<p class="hint">Looking for the keys that they own …</p>`;
  if (!list.data)
    return html`
      <p>The API keys that they own${where} are revoked: programs that use them are refused within a second.</p>
    `;
  const keys = list.data.filter(isInUse);
  if (keys.length === 0) return html`<p>They own no API key${where}: no program is refused.</p>`;
  return html`
    <p>
      ${keys.length === 1 ? "This API key is theirs and is" : "These API keys are theirs and are"} revoked;
      programs that use ${keys.length === 1 ? "it" : "them"} are refused within a second:
    </p>
    <ul>
      ${keys.map(
        (key) => html`
          <li key=${key.id}>
            <b>${key.name}</b> <code>${key.redacted_value}</code>
            ${ofWhom && html`, ${ofWhom(key)}`}
          </li>
        `,
      )}
    </ul>
  `;
}

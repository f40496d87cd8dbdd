// The columns of the table of keys.

import { Badge } from "../../../components/badge.js";
import { Icon } from "../../../components/icons.js";
import { Menu } from "../../../components/menu.js";
import { Time } from "../../../components/numbers.js";
import { html } from "../../../lib/html.js";
import { endsSoon, isInUse, ownerOf, stateOf } from "./state.js";
import { actions } from "./dialogs.js";

export function columnsFor(may, setAct) {
  return [
    { key: "name", title: "Name" },
    {
      key: "redacted_value",
      title: "Key",
      sort: false,
      render: (key) => html`<code>${key.redacted_value}</code>`,
    },
    { key: "state", title: "State", value: stateOf, render: (key) => html`<${State} apiKey=${key} />` },
    { key: "scopes", title: "May", value: ({ scopes }) => scopes.join(", ") },
    { key: "owner", title: "Owner", value: ownerOf },
    {
      key: "last_used_at",
      title: "Last used",
      render: ({ last_used_at: at }) => html`<${Time} at=${at} relative none="not used yet" />`,
    },
    {
      key: "expires_at",
      title: "Expires",
      render: (key) => html`
        <span class=${endsSoon(key) ? "warn" : ""}>
          <${Time} at=${key.expires_at} relative=${endsSoon(key)} />
        </span>
      `,
    },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !may("keys.write"),
      render: (key) =>
        isInUse(key) &&
        html`
          <${Menu}
            label="Actions on ${key.name}"
            align="end"
            look="button quiet small icon-only"
            button=${html`<${Icon} name="more" />`}
            items=${actions(key, setAct)}
          />
        `,
    },
  ];
}

export function State({ apiKey }) {
  return html`
    <span class="row">
      <${Badge} dot>${stateOf(apiKey)}<//>
      ${
        apiKey.previous_secret_expires_at * 1000 > Date.now() &&
        html`
          <${Badge} tone="info" title="The secret before the last rotation still works">
            two secrets
          <//>
        `
      }
    </span>
  `;
}

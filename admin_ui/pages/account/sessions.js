// The list of the reader's logins, each with a button that ends it.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm } from "../../components/dialog.js";
import { Time } from "../../components/numbers.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del } from "../../lib/api.js";
import { useApi } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";

export function Sessions() {
  const list = useApi("/admin/v1/logins");
  const [ending, end] = useState(null);
  const columns = [
    {
      key: "user_agent",
      title: "Browser",
      value: ({ user_agent }) => browser(user_agent),
      render: (row) => html`
        <span title=${row.user_agent}>${browser(row.user_agent)}</span>${" "}
        ${row.current && html`<${Badge} tone="info">this one<//>`}
      `,
    },
    { key: "address", title: "Address", render: ({ address }) => html`<code>${address}</code>` },
    { key: "created_at", title: "Since", format: "time" },
    { key: "last_used_at", title: "Last used", render: ({ last_used_at: at }) => html`<${Time} at=${at} relative />` },
    {
      key: "end",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      render: (row) =>
        !row.current &&
        html`
          <${Button} small onClick=${() => end(row)}>
            Sign out
          <//>
        `,
    },
  ];
  return html`
    <${Section}
      title="Sessions"
      hint="Where you are signed in. One that you do not know: sign it out and change your password."
    >
      <${Table}
        name="sessions"
        label="Sessions"
        columns=${columns}
        rows=${list.data?.data}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        filter=${false}
      />
      ${
        ending &&
        html`
          <${Confirm}
            title="Sign out this session?"
            verb="Sign out"
            onClose=${() => end(null)}
            act=${async () => {
              await del(`/admin/v1/logins/${encodeURIComponent(ending.id)}`);
              list.reload();
              toast("The session has ended");
            }}
          >
            <p>
              ${browser(ending.user_agent)} at ${ending.address} will have to sign in again.
            </p>
          <//>
        `
      }
    <//>
  `;
}

/** Return a browser's name from its user agent, such as "Chrome on Linux". */
function browser(userAgent) {
  const name = userAgent.match(/Edg|Firefox|Chrome|Safari|curl|python/i)?.[0] ?? "Unknown";
  if (/curl|python/i.test(name)) return `A program (${name})`;
  const system = userAgent.match(/Windows|Android|iPhone|iPad|Mac OS X|Linux/)?.[0];
  return `${name.replace("Edg", "Edge")}${system ? ` on ${system.replace(" OS X", "")}` : ""}`;
}

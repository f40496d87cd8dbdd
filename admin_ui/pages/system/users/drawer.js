// The drawer about one person: facts, and their logins.

import { Button, Code } from "../../../components/button.js";
import { Dialog } from "../../../components/dialog.js";
import { Time } from "../../../components/numbers.js";
import { Facts } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { mayTouch, roleName } from "../../../lib/rules/roles.js";
import { setQuery } from "../../../lib/router.js";
import { can } from "../../../lib/session.js";
import { actions } from "./dialogs.js";
import { signsIn } from "./words.js";

export function Drawer({ userId, mayWrite, setAct }) {
  const { data: user, error } = useApi(`/users/${encodeURIComponent(userId)}`);
  const logins = useApi(`/users/${encodeURIComponent(userId)}/logins`);
  const close = () => setQuery({ user: null });
  const open = (act) => (close(), setAct(act));
  const columns = [
    { key: "address", title: "Address", render: ({ address }) => html`<code>${address}</code>` },
    { key: "created_at", title: "Since", format: "time" },
    { key: "last_used_at", title: "Last used", render: ({ last_used_at: at }) => html`<${Time} at=${at} relative />` },
  ];
  return html`
    <${Dialog} title=${user?.name || user?.email || "Person"} side onClose=${close}>
      ${error && html`<p>${error.message}</p>`}
      ${
        user &&
        html`
          <div class="stack">
            ${
              mayWrite &&
              mayTouch(user.role) &&
              html`
                <div class="row">
                  ${actions(user, open)
                    .filter(Boolean)
                    .map(
                      ({ title, icon, onClick, danger }) => html`
                        <${Button}
                          key=${title}
                          small
                          icon=${icon}
                          kind=${danger ? "danger" : "secondary"}
                          onClick=${onClick}
                        >
                          ${title}
                        <//>
                      `,
                    )}
                </div>
              `
            }
            <${Facts}
              rows=${[
                ["E-mail", user.email],
                ["Role", roleName(user.role)],
                ["Signs in with", signsIn(user)],
                ["Added", html`<${Time} at=${user.added_at} />`],
                ["Id", html`<${Code} text=${user.id} what="user id" />`],
                [
                  "What they did",
                  can("audit.read")
                    ? html`<a href="/admin/system/audit?actor=${encodeURIComponent(user.email)}">Audit log</a>`
                    : undefined,
                ],
              ]}
            />
            <h3>Signed in</h3>
            <${Table}
              name="logins"
              label="Sessions"
              columns=${columns}
              rows=${logins.data?.data}
              error=${logins.error}
              reload=${logins.reload}
              filter=${false}
              empty=${html`<p class="hint">Nowhere now.</p>`}
            />
          </div>
        `
      }
    <//>
  `;
}

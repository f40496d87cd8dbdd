// The drawer about one key: facts, and its usage.

import { Button, Code } from "../../../components/button.js";
import { Dialog } from "../../../components/dialog.js";
import { Time } from "../../../components/numbers.js";
import { Facts } from "../../../components/page.js";
import { useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { setQuery } from "../../../lib/router.js";
import { isInUse, ownerOf } from "./state.js";
import { State } from "./columns.js";
import { actions } from "./dialogs.js";

export function KeyDrawer({ projectId, keyId, may, setAct }) {
  const { data: key, error } = useApi(pathOf(projectId, `/api_keys/${encodeURIComponent(keyId)}`));
  const close = () => setQuery({ key: null });
  const open = (act) => (close(), setAct(act));
  const at = (when, none = "never") => html`<${Time} at=${when} none=${none} />`;
  return html`
    <${Dialog} title=${key?.name ?? "API key"} side onClose=${close}>
      ${error && html`<p>${error.message}</p>`}
      ${
        key &&
        html`
          <div class="stack">
            <div class="row">
              <${State} apiKey=${key} />
              ${
                may("keys.write") &&
                isInUse(key) &&
                actions(key, open)
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
                  )
              }
            </div>
            <${Facts}
              rows=${[
                ["Key", html`<code>${key.redacted_value}</code>`],
                ["Id", html`<${Code} text=${key.id} what="key id" />`],
                ["Owner", ownerOf(key)],
                ["May", key.scopes.join(", ")],
                ["Models", key.models ? key.models.join(", ") : "all"],
                ["Networks", key.ip_allowlist ? key.ip_allowlist.join(", ") : "any"],
                ["Created", at(key.created_at)],
                ["Last used", at(key.last_used_at, "not used yet")],
                ["Expires", at(key.expires_at)],
                ["Suspended", key.suspended_at ? at(key.suspended_at) : undefined],
                ["Revoked", key.revoked_at ? at(key.revoked_at) : undefined],
                [
                  "Old secret works until",
                  key.previous_secret_expires_at ? at(key.previous_secret_expires_at) : undefined,
                ],
              ]}
            />
            ${
              may("billing.read") &&
              html`
                <p class="row">
                  <a href="/admin/requests?project=${projectId}&key=${key.id}">Its requests</a>
                  <a href="/admin/usage?project=${projectId}&key=${key.id}">Its usage</a>
                </p>
              `
            }
          </div>
        `
      }
    <//>
  `;
}

// The dialog that shows a key right after it was made or rotated: the only time that its secret is seen.

import { Button } from "../../../components/button.js";
import { Dialog } from "../../../components/dialog.js";
import { Notice } from "../../../components/feedback.js";
import { Secret } from "../../../components/secret.js";
import { html } from "../../../lib/html.js";
import { FirstRequest } from "../first_request.js";

/**
 * A new key, shown once. apiKey: the key with its secret. title, children: further text. href: the tenant's page, if
 * this is another one.
 */
export function KeyShownOnce({ apiKey, title, children, href, onClose }) {
  return html`
    <${Dialog}
      title=${title}
      onClose=${onClose}
      locked
      wide
      footer=${html`
        ${
          href &&
          html`
            <${Button} href=${href} onClick=${onClose}>
              Open the tenant
            <//>
          `
        }
        <${Button} kind="primary" onClick=${onClose}>
          I have stored it
        <//>
      `}
    >
      <div class="stack">
        ${children}
        <${Notice} tone="warn" title="This key is shown once">
          Store it in a secret manager now. Whoever has it can use it; a lost one is rotated or revoked.
        <//>
        <div class="field">
          <span class="label">${apiKey.name}</span>
          <${Secret} value=${apiKey.value} label="API key" />
        </div>
        <${FirstRequest} apiKey=${apiKey} />
      </div>
    <//>
  `;
}

// Shows a password that was made for somebody, once; that person is to change it.

import { html } from "../lib/html.js";
import { Button } from "./button.js";
import { Dialog } from "./dialog.js";
import { Notice } from "./feedback.js";
import { Secret } from "./secret.js";

export function PasswordOnce({ email, password, title, onClose }) {
  return html`
    <${Dialog}
      title=${title}
      onClose=${onClose}
      locked
      footer=${html`<${Button} kind="primary" onClick=${onClose}>
          I have passed it on
        <//>`}
    >
      <div class="stack">
        <p>
          <b>${email}</b> signs in at <code>${window.location.origin}/admin/</code> with this password, and can change
          it on the account page.
        </p>
        <${Notice} tone="warn" title="This password is shown once">
          Pass it on over a channel that only they read.
        <//>
        <div class="field">
          <span class="label">Password</span>
          <${Secret} value=${password} label="Password" />
        </div>
      </div>
    <//>
  `;
}

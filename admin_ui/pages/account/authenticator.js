// The reader's authenticator: the dialogs by which it is added, with a QR code, and removed.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { Secret } from "../../components/secret.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { html, useMemo, useState } from "../../lib/html.js";
import { qrPath } from "../../lib/qr.js";
import { readSession } from "../../lib/session.js";

export function Authenticator({ has, isNeeded }) {
  const [step, setStep] = useState(null);
  const close = () => setStep(null);
  return html`
    <${Section}
      title="Authenticator"
      hint="With one, signing in takes a code of an app on your phone as well."
      card
      actions=${
        has
          ? html`<${Button} onClick=${() => setStep("remove")}>Remove<//>`
          : html`
            <${Button} kind="primary" onClick=${() => setStep("add")}>
              Set up
            <//>
          `
      }
    >
      <p>
        ${
          has
            ? html`
              <${Badge} tone="good" dot>
                On
              <//>${" "}
              Codes are asked for when you sign in.
            `
            : html`
              <${Badge} dot>Off<//>${" "}
              ${
                isNeeded
                  ? "With your role a password alone is not enough here: a passkey takes its place."
                  : "A password alone is enough to sign in."
              }
            `
        }
      </p>
      ${step === "add" && html`<${AddAuthenticator} onClose=${close} />`}
      ${step === "remove" && html`<${RemoveAuthenticator} onClose=${close} />`}
    <//>
  `;
}

function AddAuthenticator({ onClose }) {
  const [made, setMade] = useState(null);
  const begin = useForm({ password: "" }, async (values) => setMade(await post("/admin/v1/totp", values)));
  const [codes, setCodes] = useState(null);
  const confirm = useForm({ code: "" }, async (values) => {
    setCodes((await post("/admin/v1/totp/confirm", values)).recovery_codes);
    toast("The authenticator is set up");
  });
  const done = () => (onClose(), readSession());
  if (codes !== null) {
    return html`
      <${Dialog} title="Recovery codes" onClose=${done}>
        <div class="stack">
          <p>
            Each of these takes the place of one code of your authenticator, should you lose it. They are shown this
            once: keep them where your password is not.
          </p>
          <pre class="codes" aria-label="Recovery codes">
            ${codes.join("\n")}
          </pre>
          <${Button} kind="primary" onClick=${done}>
            I have kept them
          <//>
        </div>
      <//>
    `;
  }
  return html`
    <${Dialog} title="Set up an authenticator" onClose=${onClose} wide=${made !== null}>
      ${
        made === null
          ? html`
            <${Form} form=${begin} verb="Continue" what="begin" onCancel=${onClose}>
              <${TextField}
                ...${begin.bind("password")}
                label="Your password"
                type="password"
                autocomplete="current-password"
                autofocus
              />
            <//>
          `
          : html`
            <div class="totp">
              <${QrCode} text=${made.uri} label="QR code for your authenticator" />
              <div class="stack">
                <p>
                  Scan the code with an authenticator app, or type the secret into it. Then confirm with the code that
                  it shows.
                </p>
                <div class="field">
                  <span class="label">Secret</span>
                  <${Secret} value=${made.secret} label="Secret" />
                </div>
                <div class="field">
                  <span class="label">Address</span>
                  <${Secret} value=${made.uri} label="Address" />
                </div>
                <${Form} form=${confirm} verb="Confirm" what="confirm it" onCancel=${onClose}>
                  <${TextField}
                    ...${confirm.bind("code")}
                    label="Code"
                    inputmode="numeric"
                    autocomplete="one-time-code"
                    maxlength="6"
                    autofocus
                  />
                <//>
              </div>
            </div>
          `
      }
    <//>
  `;
}

function RemoveAuthenticator({ onClose }) {
  const form = useForm({ password: "", code: "" }, async (values) => {
    await post("/admin/v1/totp/remove", values);
    await readSession();
    toast("The authenticator is removed");
    onClose();
  });
  return html`
    <${Dialog} title="Remove the authenticator" onClose=${onClose}>
      <div class="stack">
        <${Notice} tone="warn">A password alone will be enough to sign in, and all your other sessions end.<//>
        <${Form} form=${form} verb="Remove" what="remove it" onCancel=${onClose} danger>
          <${TextField}
            ...${form.bind("password")}
            label="Your password"
            type="password"
            autocomplete="current-password"
            autofocus
          />
          <${TextField}
            ...${form.bind("code")}
            label="Code"
            hint="Of the authenticator, or a recovery code."
            autocomplete="one-time-code"
            maxlength="40"
          />
        <//>
      </div>
    <//>
  `;
}

function QrCode({ text, label }) {
  const { path, size } = useMemo(() => qrPath(text), [text]);
  return html`
    <svg class="qr" role="img" aria-label=${label} viewBox="0 0 ${size} ${size}" shape-rendering="crispEdges">
      <path d=${path} />
    </svg>
  `;
}

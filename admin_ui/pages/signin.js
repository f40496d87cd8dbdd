// The sign-in page: address and password, then the authenticator's code for people who have one.

import { Button } from "../components/button.js";
import { ErrorBox } from "../components/feedback.js";
import { Form, TextField, useForm } from "../components/form.js";
import { html, useEffect, useState } from "../lib/html.js";
import { arePossible, inWords } from "../lib/passkeys.js";
import { signIn, signInByPasskey } from "../lib/session.js";

const CODE_CHARS = 40;

export default function SignIn() {
  const [wantsCode, wantCode] = useState(false);
  useEffect(() => {
    document.title = "Sign in · Lorikeet";
  }, []);
  const form = useForm({ email: "", password: "", code: "" }, async ({ email, password, code }) => {
    try {
      await signIn(email.trim(), password, code);
    } catch (error) {
      if (error.param === "code" && !wantsCode) return void wantCode(true);
      throw error;
    }
  });
  const isSecond = wantsCode;
  return html`
    <main class="signin">
      <div class="signin-box">
        <div class="signin-head">
          <img src="/admin/icon.svg" alt="" width="40" height="40" />
          <div>
            <h1>${isSecond ? "One more step" : "Sign in to Lorikeet"}</h1>
            <p class="muted">
              ${
                isSecond
                  ? "Type the code that your authenticator shows, or a recovery code."
                  : "With the address and password that you were given."
              }
            </p>
          </div>
        </div>
        <${Form} form=${form} verb=${isSecond ? "Confirm" : "Sign in"} what="sign you in">
          ${
            isSecond
              ? html`
                <${TextField}
                  ...${form.bind("code")}
                  key="code"
                  label="Code"
                  autocomplete="one-time-code"
                  maxlength=${CODE_CHARS}
                  class="input code-input"
                  autofocus
                />
              `
              : html`
                <${TextField}
                  ...${form.bind("email")}
                  key="email"
                  label="E-mail"
                  type="email"
                  autocomplete="username"
                  autofocus
                  required
                />
                <${TextField}
                  ...${form.bind("password")}
                  key="password"
                  label="Password"
                  type="password"
                  autocomplete="current-password"
                  required
                />
              `
          }
        <//>
        ${
          isSecond
            ? html`
              <button type="button" class="link" onClick=${() => (wantCode(false), form.set("code", ""))}>
                Back
              </button>
            `
            : html`
              <${ByPasskey} />
              <p class="hint">
                At the first start, <code>lorikeet serve</code> prints where the first password is.
              </p>
            `
        }
      </div>
    </main>
  `;
}

/** The button to sign in by a passkey, shown if passkeys work here. */
function ByPasskey() {
  const [possible, setPossible] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  useEffect(() => {
    arePossible().then(setPossible, () => {});
  }, []);
  if (!possible) return null;
  const go = async () => {
    setBusy(true);
    setError(null);
    try {
      await signInByPasskey();
    } catch (failure) {
      setError(inWords(failure));
      setBusy(false);
    }
  };
  return html`
    <div class="stack">
      <${Button} onClick=${go} disabled=${busy}>Sign in with a passkey<//>
      ${error && html`<${ErrorBox} error=${error} what="sign you in" />`}
    </div>
  `;
}

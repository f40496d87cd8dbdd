// The reader's own account: password, authenticator, and where they are signed in.

import { Badge } from "../components/badge.js";
import { Button, Code } from "../components/button.js";
import { Confirm, Dialog } from "../components/dialog.js";
import { Notice } from "../components/feedback.js";
import { Form, TextField, useForm } from "../components/form.js";
import { Time } from "../components/numbers.js";
import { Facts, Page, Section } from "../components/page.js";
import { Secret } from "../components/secret.js";
import { Table } from "../components/table.js";
import { toast } from "../components/toast.js";
import { del, post } from "../lib/api.js";
import { useApi } from "../lib/data.js";
import { html, useMemo, useState } from "../lib/html.js";
import { qrPath } from "../lib/qr.js";
import { readSession, useSession } from "../lib/session.js";
import { Passkeys } from "./passkeys.js";

const ROLES = {
  owner: "Owner of the organization",
  admin: "Admin of the organization",
  billing: "Billing",
  viewer: "Viewer",
};

const wayOn = (who) =>
  who.has_passkey_here
    ? "Sign out, and in again with your passkey, to go on."
    : who.has_passkey
      ? "Your passkeys belong to another address that this server had before. Ask somebody who manages users to " +
        "remove them, and set up a new one then."
      : "Set up an authenticator or a passkey to go on.";

export default function Account() {
  const { who } = useSession();
  const projects = (who.projects ?? []).map(({ name, role }) => `${name} (${role})`).join(", ");
  return html`
    <${Page} title="Account" lead="How you sign in, and where you are signed in now.">
      ${
        who.must_set_up_totp &&
        html`<${Notice} tone="warn">People with your role need a second factor here. ${wayOn(who)}<//>`
      }
      <${Section} card>
        <${Facts}
          rows=${[
            ["E-mail", who.email],
            ["Role", ROLES[who.role] ?? "Member of single projects"],
            ["Projects", projects || undefined],
            ["Signed in until", html`<${Time} at=${who.expires_at} />`],
            ["User id", html`<${Code} text=${who.user_id} what="user id" />`],
          ]}
        />
      <//>
      <${Password} />
      <${Authenticator} has=${who.has_totp} isNeeded=${who.needs_second_factor} />
      <${Passkeys} hasCode=${who.has_totp} />
      <${Sessions} />
    <//>
  `;
}

function Password() {
  const form = useForm({ password: "", new_password: "" }, async (values) => {
    const { ids } = await post("/admin/v1/password", values);
    form.reset();
    toast(ids.length ? `Password changed; ${ids.length} other sessions ended` : "Password changed");
  });
  return html`
    <${Section} title="Password" hint="Changing it ends all your other sessions." card>
      <${Form} form=${form} verb="Change password" what="change the password">
        <${TextField}
          ...${form.bind("password")}
          label="Current password"
          type="password"
          autocomplete="current-password"
        />
        <${TextField}
          ...${form.bind("new_password")}
          label="New password"
          type="password"
          autocomplete="new-password"
          hint="12 characters or more; a few words are best."
        />
      <//>
    <//>
  `;
}

function Authenticator({ has, isNeeded }) {
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

function Sessions() {
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

/** What people call it: "Chrome on Linux". */
function browser(userAgent) {
  const name = userAgent.match(/Edg|Firefox|Chrome|Safari|curl|python/i)?.[0] ?? "Unknown";
  if (/curl|python/i.test(name)) return `A program (${name})`;
  const system = userAgent.match(/Windows|Android|iPhone|iPad|Mac OS X|Linux/)?.[0];
  return `${name.replace("Edg", "Edge")}${system ? ` on ${system.replace(" OS X", "")}` : ""}`;
}

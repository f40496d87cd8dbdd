// The reader's own passkeys, with which they sign in without password and code: listed, added and removed.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Time } from "../../components/numbers.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { useApi } from "../../lib/data.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { add, arePossible, inWords } from "../../lib/passkeys.js";
import { readSession } from "../../lib/session.js";

/** The reader's passkeys. hasCode: whether the reader has an authenticator, whose code is asked for as well. */
export function Passkeys({ hasCode }) {
  const list = useApi("/admin/v1/passkeys");
  const [act, setAct] = useState(null);
  const [possible, setPossible] = useState(false);
  useEffect(() => {
    arePossible().then(setPossible, () => {});
  }, []);
  const close = () => setAct(null);
  const columns = [
    {
      key: "name",
      title: "Name",
      render: ({ name, host, is_usable }) => html`
        ${name}
        ${
          !is_usable &&
          html`
            ${" "}
            <span title="Browsers offer it at that address alone. Remove it, and add one for this address.">
              <${Badge} tone="warn">of ${host ?? "another address"}<//>
            </span>
          `
        }
      `,
    },
    { key: "created_at", title: "Added", format: "time" },
    {
      key: "last_used_at",
      title: "Last used",
      render: ({ last_used_at: at }) => (at === null ? "never" : html`<${Time} at=${at} relative />`),
    },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      render: (passkey) => html`
        <${Button} small label="Rename ${passkey.name}" onClick=${() => setAct({ what: "rename", passkey })}>
          Rename
        <//>${" "}
        <${Button} small label="Remove ${passkey.name}" onClick=${() => setAct({ what: "remove", passkey })}>
          Remove
        <//>
      `,
    },
  ];
  return html`
    <${Section}
      title="Passkeys"
      hint=${
        possible
          ? "A passkey of your device or its password manager signs you in without password and code."
          : "Passkeys can be added and used where this page is at the server's own https address."
      }
      actions=${possible && html`<${Button} kind="primary" onClick=${() => setAct({ what: "add" })}>Add passkey<//>`}
    >
      <${Table}
        name="passkeys"
        label="Passkeys"
        columns=${columns}
        rows=${list.data?.data}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        filter=${false}
        empty=${html`<p class="muted">You have none.</p>`}
      />
      ${act?.what === "add" && html`<${Add} hasCode=${hasCode} onDone=${list.reload} onClose=${close} />`}
      ${act?.what === "rename" && html`<${Rename} passkey=${act.passkey} onDone=${list.reload} onClose=${close} />`}
      ${
        act?.what === "remove" &&
        html`<${Remove} passkey=${act.passkey} hasCode=${hasCode} onDone=${list.reload} onClose=${close} />`
      }
    <//>
  `;
}

function Proof({ form, hasCode }) {
  return html`
    <${TextField}
      ...${form.bind("password")}
      label="Your password"
      type="password"
      autocomplete="current-password"
    />
    ${
      hasCode &&
      html`
        <${TextField}
          ...${form.bind("code")}
          label="Code"
          hint="Of your authenticator, or a recovery code."
          autocomplete="one-time-code"
          maxlength="40"
        />
      `
    }
  `;
}

const MAKING = {
  NotAllowedError: "No passkey was made: it was refused, took too long, or the device holds one of yours already.",
};

function Add({ hasCode, onDone, onClose }) {
  const form = useForm({ name: "", password: "", code: "" }, async ({ name, password, code }) => {
    try {
      await add(name.trim(), password, code);
    } catch (error) {
      throw inWords(error, MAKING);
    }
    onDone();
    await readSession();
    toast("The passkey is added");
    onClose();
  });
  return html`
    <${Dialog} title="Add a passkey" onClose=${onClose}>
      <${Form} form=${form} verb="Continue" what="add it" onCancel=${onClose}>
        <${TextField} ...${form.bind("name")} label="Name" hint="Such as the device it is on." maxlength="64" autofocus required />
        <${Proof} form=${form} hasCode=${hasCode} />
      <//>
    <//>
  `;
}

function Rename({ passkey, onDone, onClose }) {
  const form = useForm({ name: passkey.name }, async ({ name }) => {
    await post(`/admin/v1/passkeys/${encodeURIComponent(passkey.id)}`, { name: name.trim() });
    onDone();
    onClose();
  });
  return html`
    <${Dialog} title="Rename the passkey" onClose=${onClose}>
      <${Form} form=${form} verb="Rename" what="rename it" onCancel=${onClose}>
        <${TextField} ...${form.bind("name")} label="Name" maxlength="64" autofocus required />
      <//>
    <//>
  `;
}

function Remove({ passkey, hasCode, onDone, onClose }) {
  const form = useForm({ password: "", code: "" }, async ({ password, code }) => {
    const proof = { password, ...(code && { code }) };
    await post(`/admin/v1/passkeys/${encodeURIComponent(passkey.id)}/remove`, proof);
    onDone();
    await readSession();
    toast("The passkey is removed");
    onClose();
  });
  return html`
    <${Dialog} title="Remove the passkey" onClose=${onClose}>
      <div class="stack">
        <${Notice} tone="warn">“${passkey.name}” will sign nobody in any more, and all your other sessions end.<//>
        <${Form} form=${form} verb="Remove" what="remove it" onCancel=${onClose} danger>
          <${Proof} form=${form} hasCode=${hasCode} />
        <//>
      </div>
    <//>
  `;
}

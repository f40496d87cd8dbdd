// The menu of actions on a person's account, and the dialog of each.

import { Confirm, Dialog } from "../../../components/dialog.js";
import { Form, Select, TextField, useForm } from "../../../components/form.js";
import { PasswordOnce } from "../../../components/password_once.js";
import { toast } from "../../../components/toast.js";
import { del, post } from "../../../lib/api.js";
import { address } from "../../../lib/rules/checks.js";
import { invalidate, useAll } from "../../../lib/data.js";
import { plural } from "../../../lib/format/format.js";
import { html, useRef, useState } from "../../../lib/html.js";
import { newPassword } from "../../../lib/rules/passwords.js";
import { useProjectNames } from "../../../lib/projects.js";
import { ORGANIZATION_ROLES, roleName, roleOptions } from "../../../lib/rules/roles.js";
import { can } from "../../../lib/session.js";
import { EndingKeys } from "../../tenants/keys/ending.js";
import { NO_ROLE } from "./words.js";

export function actions(user, setAct) {
  const item = (title, what, icon, more) => ({ title, icon, onClick: () => setAct({ what, user }), ...more });
  return [
    item("Name and role …", "change", "user"),
    item("Reset sign-in …", "reset", "refresh"),
    item("Sign out everywhere …", "out", "out"),
    null,
    item("Remove …", "remove", "trash", { danger: true }),
  ];
}

export function Act({ act: { what, user, made }, setAct, onClose }) {
  const path = user && `/users/${user.id}`;
  const done = (text) => (invalidate("/users"), toast(text));
  if (what === "add")
    return html`<${NewPerson} onMade=${(made) => setAct({ what: "made", made })} onClose=${onClose} />`;
  if (what === "change") return html`<${ChangePerson} user=${user} onClose=${onClose} />`;
  if (what === "made") return html`<${PasswordOnce} ...${made} title="The account is ready" onClose=${onClose} />`;
  if (what === "reset") return html`<${Reset} user=${user} onClose=${onClose} />`;
  if (what === "out") {
    return html`
      <${Confirm}
        title="Sign ${user.email} out?"
        verb="Sign out"
        onClose=${onClose}
        act=${async () => {
          const { ids } = await del(`${path}/logins`);
          done(ids.length ? `${plural(ids.length, "session")} ended` : `${user.email} was not signed in`);
        }}
      >
        <p>All sessions of ${user.email} end now. They can sign in again; their API keys go on.</p>
      <//>
    `;
  }
  return html`
    <${Confirm}
      title="Remove ${user.email}?"
      verb="Remove person"
      name=${user.email}
      onClose=${onClose}
      act=${async () => (await del(path), done(`${user.email} is removed`))}
    >
      <p>Their sessions end, and they leave all tenants.</p>
      <${PersonsKeys} user=${user} />
    <//>
  `;
}

function PersonsKeys({ user }) {
  const keys = useAll(can("keys.read") ? `/users/${user.id}/api_keys` : null);
  const nameOf = useProjectNames();
  return html`
    <${EndingKeys} list=${keys} ofWhom=${({ project_id: id }) => (id ? `of ${nameOf(id)}` : "an operator key")} />
  `;
}

function NewPerson({ onMade, onClose }) {
  const form = useForm(
    { email: "", name: "", role: "viewer" },
    async ({ email, name, role }) => {
      const password = newPassword();
      const user = await post("/users", {
        email: email.trim(),
        name: name.trim(),
        role: role || null,
        password,
      });
      invalidate("/users");
      onMade({ email: user.email, password });
    },
    ({ email }) => ({ email: address(email) }),
  );
  return html`
    <${Dialog} title="New person" onClose=${onClose}>
      <${Form} form=${form} verb="Create account" what="create the account" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("email")}
          label="E-mail"
          type="email"
          autocomplete="off"
          autofocus
          hint="They sign in with it. No mail is sent: you pass a first password on."
        />
        <${TextField} ...${form.bind("name")} label="Name" optional autocomplete="off" maxlength="128" />
        <${Select} ...${form.bind("role")} label="Role" options=${[...roleOptions(ORGANIZATION_ROLES), NO_ROLE]} />
      <//>
    <//>
  `;
}

function ChangePerson({ user, onClose }) {
  const form = useForm({ name: user.name, role: user.role ?? "" }, async ({ name, role }) => {
    await post(`/users/${user.id}`, { name: name.trim(), role: role || null });
    invalidate("/users");
    toast(`${user.email} is ${roleName(role).toLowerCase()} now`);
    onClose();
  });
  return html`
    <${Dialog} title="Change ${user.email}" onClose=${onClose}>
      <${Form} form=${form} verb="Save" what="change this person" onCancel=${onClose}>
        <${TextField} ...${form.bind("name")} label="Name" optional autocomplete="off" maxlength="128" />
        <${Select}
          ...${form.bind("role")}
          label="Role"
          options=${[...roleOptions(ORGANIZATION_ROLES), NO_ROLE]}
          hint="It holds from their next request on."
        />
      <//>
    <//>
  `;
}

/**
 * The question before a password is reset, which the new password then replaces, so that closing it does nothing else.
 */
function Reset({ user, onClose }) {
  const [made, setMade] = useState(null);
  const isDone = useRef(false);
  if (made) return html`<${PasswordOnce} ...${made} title="The sign-in is reset" onClose=${onClose} />`;
  return html`
    <${Confirm}
      title="Reset the sign-in of ${user.email}?"
      verb="Reset"
      onClose=${() => isDone.current || onClose()}
      act=${async () => {
        const password = newPassword();
        await post(`/users/${user.id}/reset`, { password });
        invalidate("/users");
        isDone.current = true;
        setMade({ email: user.email, password });
      }}
    >
      <p>
        They get a new password, which you pass on. Their authenticator and passkeys are removed, all their sessions
        end, and a lock after wrong passwords is lifted.
      </p>
    <//>
  `;
}

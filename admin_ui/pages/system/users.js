// The people: who signs in here, with which role in the whole organization.

import { Badge } from "../../components/badge.js";
import { Button, Code } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Form, Select, TextField, useForm } from "../../components/form.js";
import { Icon } from "../../components/icons.js";
import { Menu } from "../../components/menu.js";
import { Time } from "../../components/numbers.js";
import { Facts, Page } from "../../components/page.js";
import { PasswordOnce } from "../../components/password_once.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { address } from "../../lib/rules/checks.js";
import { invalidate, useAll, useApi, useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useRef, useState } from "../../lib/html.js";
import { useShortcut } from "../../lib/rules/keys.js";
import { newPassword } from "../../lib/rules/passwords.js";
import { useProjectNames } from "../../lib/projects.js";
import { ORGANIZATION_ROLES, mayTouch, roleName, roleOptions } from "../../lib/rules/roles.js";
import { here, setQuery, useQuery } from "../../lib/router.js";
import { can, useSession } from "../../lib/session.js";
import { EndingKeys } from "../tenants/keys/ending.js";
import { SystemTabs } from "./tabs.js";

const NO_ROLE = ["", "Member: only the tenants they are added to"];

export default function People() {
  const list = useList("/users", {}, { limit: 100 });
  const [chosen] = useQuery("user");
  const [act, setAct] = useState(null);
  const close = () => setAct(null);
  const mayWrite = can("users.write");
  const { who } = useSession();
  useShortcut("n", "New person", () => mayWrite && setAct({ what: "add" }));
  const columns = [
    {
      key: "name",
      title: "Name",
      value: ({ name, email }) => name || email,
      render: (user) => html`
        ${user.name || user.email}
        ${
          user.id === who.user_id &&
          html`
            ${" "}
            <${Badge} tone="info">you<//>
          `
        }
      `,
    },
    { key: "email", title: "E-mail" },
    {
      key: "role",
      title: "Role",
      value: ({ role }) => roleName(role),
      render: ({ role }) => html`
        <span title=${ORGANIZATION_ROLES[role] ?? NO_ROLE[1]}>
          <${Badge}>${roleName(role)}<//>
        </span>
      `,
    },
    {
      key: "sign_in",
      title: "Signs in with",
      value: signsIn,
      render: (user) => html`<span class=${user.has_password ? "" : "faint"}>${signsIn(user)}</span>`,
    },
    { key: "added_at", title: "Added", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !mayWrite,
      render: (user) =>
        mayTouch(user.role) &&
        html`
          <${Menu}
            label="Actions on ${user.email}"
            align="end"
            look="button quiet small icon-only"
            button=${html`<${Icon} name="more" />`}
            items=${actions(user, setAct)}
          />
        `,
    },
  ];
  return html`
    <${Page}
      title="System"
      tabs=${html`<${SystemTabs} />`}
      lead=${list.items && html`<${Lead} users=${list.items} />`}
      actions=${
        mayWrite &&
        html`
          <${Button} kind="primary" icon="plus" onClick=${() => setAct({ what: "add" })}>
            New person
          <//>
        `
      }
    >
      <${Table}
        label="People"
        columns=${columns}
        rows=${list.items}
        href=${(user) => here({ user: user.id })}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
      />
      ${act && html`<${Act} act=${act} setAct=${setAct} onClose=${close} />`}
      ${chosen && html`<${Drawer} userId=${chosen} mayWrite=${mayWrite} setAct=${setAct} />`}
    <//>
  `;
}

function Lead({ users }) {
  const without = users.filter(({ has_password: password, has_totp: totp, role }) => role && password && !totp).length;
  return html`
    <b>${users.length === 1 ? "One person" : `${users.length} people`}</b>
    ${
      without
        ? html`; <b>${without}</b> with a role ${without === 1 ? "signs" : "sign"} in without an authenticator`
        : ""
    }
    .
  `;
}

const signsIn = ({ has_password: password, has_totp: totp, is_locked_out: isLockedOut }) =>
  isLockedOut
    ? "locked out: passkeys of another address"
    : !password
      ? "no password yet"
      : totp
        ? "password and authenticator"
        : "password";

function actions(user, setAct) {
  const item = (title, what, icon, more) => ({ title, icon, onClick: () => setAct({ what, user }), ...more });
  return [
    item("Name and role …", "change", "user"),
    item("Reset sign-in …", "reset", "refresh"),
    item("Sign out everywhere …", "out", "out"),
    null,
    item("Remove …", "remove", "trash", { danger: true }),
  ];
}

function Act({ act: { what, user, made }, setAct, onClose }) {
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

/** Asks, and in its place shows the password: closing the question then closes nothing. */
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

function Drawer({ userId, mayWrite, setAct }) {
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

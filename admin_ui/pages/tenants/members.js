// The list of one tenant's members and their roles.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty } from "../../components/feedback.js";
import { Form, Select, TextField, useForm } from "../../components/form.js";
import { PasswordOnce } from "../../components/password_once.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { ApiError, del, get, post } from "../../lib/api.js";
import { address, given } from "../../lib/rules/checks.js";
import { invalidate, useAll, useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useShortcut } from "../../lib/rules/keys.js";
import { newPassword } from "../../lib/rules/passwords.js";
import { mayIn, pathOf } from "../../lib/projects_api.js";
import { PROJECT_ROLES, mayTouch, roleName, roleOptions } from "../../lib/rules/roles.js";
import { can, useSession } from "../../lib/session.js";
import { Tenant } from "./frame.js";
import { EndingKeys } from "./keys/ending.js";

export default function Members({ params }) {
  const id = params.project;
  const base = pathOf(id, "/users");
  const list = useList(base, {}, { limit: 100 });
  const [act, setAct] = useState(null);
  const close = () => setAct(null);
  useShortcut("n", "Add member", () => mayIn(id, { status: "active" })("members.write") && setAct({ add: true }));
  const add = (may) =>
    may("members.write") &&
    html`
      <${Button} kind="primary" icon="plus" onClick=${() => setAct({ add: true })}>
        Add member
      <//>
    `;
  return html`
    <${Tenant}
      params=${params}
      lead=${list.items && html`<${Lead} members=${list.items} />`}
      actions=${(_, may) => add(may)}
    >
      ${(project, may) => html`
        <${Table}
          label="Members"
          columns=${columnsFor(id, may, setAct)}
          rows=${list.items}
          error=${list.error}
          reload=${list.reload}
          loading=${list.loading}
          hasMore=${list.hasMore}
          more=${list.more}
          empty=${html`<${Empty} icon="user" title="No member yet" action=${add(may)}>
              Members see this tenant alone. The organization's own people see it without being one.
            <//>`}
        />
        ${act?.add && html`<${AddMember} project=${project} onMade=${(made) => setAct({ made })} onClose=${close} />`}
        ${act?.role && html`<${ChangeRole} projectId=${id} member=${act.role} onClose=${close} />`}
        ${act?.made && html`<${PasswordOnce} ...${act.made} title="${act.made.email} is a member" onClose=${close} />`}
        ${
          act?.remove &&
          html`
            <${Confirm}
              title="Remove ${act.remove.name || act.remove.email}?"
              verb="Remove member"
              onClose=${close}
              act=${async () => {
                await del(`${base}/${act.remove.id}`);
                invalidate(pathOf(id));
                toast(`${act.remove.email} is no member any more`);
              }}
            >
              <p>
                ${act.remove.email} no longer sees ${project.name}.
              </p>
              <${MembersKeys} projectId=${id} member=${act.remove} />
            <//>
          `
        }
      `}
    <//>
  `;
}

function Lead({ members }) {
  const admins = members.filter(({ role }) => ["owner", "admin"].includes(role)).length;
  return html`<b>${plural(members.length, "member")}</b>, ${admins} of whom may change things.`;
}

/** The keys of the tenant that are revoked with a member. */
function MembersKeys({ projectId, member }) {
  const keys = useAll(can("keys.read", projectId) ? pathOf(projectId, "/api_keys") : null);
  return html`
    <${EndingKeys}
      where=" here"
      list=${{ ...keys, data: keys.data?.filter(({ owner }) => owner?.user?.id === member.id) }}
    />
  `;
}

function columnsFor(projectId, may, setAct) {
  const { who } = useSession();
  const buttons = (member) =>
    may("members.write") &&
    mayTouch(member.role, projectId) &&
    html`
      <span class="row">
        <${Button}
          small
          onClick=${() => setAct({ role: member })}
          aria-label="Change the role of ${member.email}"
        >
          Role
        <//>
        <${Button}
          kind="quiet"
          small
          icon="trash"
          label="Remove ${member.email}"
          onClick=${() => setAct({ remove: member })}
        />
      </span>
    `;
  return [
    {
      key: "name",
      title: "Name",
      value: ({ name, email }) => name || email,
      render: (member) => html`
        ${member.name || member.email} ${member.id === who.user_id && html`<${Badge} tone="info">you<//>`}
      `,
    },
    { key: "email", title: "E-mail" },
    {
      key: "role",
      title: "Role",
      render: ({ role }) => html`
        <span title=${PROJECT_ROLES[role]}>
          <${Badge}>${roleName(role)}<//>
        </span>
      `,
    },
    { key: "added_at", title: "Added", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      hide: !may("members.write"),
      render: buttons,
    },
  ];
}

/**
 * The form to add a member: by e-mail address if the reader sees the organization's people, with a new account where
 * there is none; else by id.
 */
function AddMember({ project, onMade, onClose }) {
  const byEmail = can("users.read");
  const mayMake = can("users.write");
  const people = useList(byEmail ? "/users" : null, {}, { limit: 100 });
  const form = useForm(
    byEmail ? { email: "", role: "viewer" } : { user_id: "", role: "viewer" },
    async (values) => {
      const { user, password } = byEmail
        ? await person(values.email.trim(), mayMake)
        : { user: { id: values.user_id.trim() } };
      const member = await post(pathOf(project.id, "/users"), { user_id: user.id, role: values.role });
      invalidate(pathOf(project.id), "/users");
      toast(`${member.email} is ${roleName(values.role).toLowerCase()} of ${project.name}`);
      if (password) onMade({ email: member.email, password });
      else onClose();
    },
    (values) =>
      byEmail ? { email: address(values.email) } : { user_id: given(values.user_id, "Give the id of a user.") },
  );
  return html`
    <${Dialog} title="Add a member to ${project.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Add member" what="add the member" onCancel=${onClose}>
        ${
          byEmail
            ? html`
              <${TextField}
                ...${form.bind("email")}
                label="E-mail"
                type="email"
                list="people"
                autocomplete="off"
                autofocus
                hint=${
                  mayMake
                    ? "Whoever has no account yet gets one, with a password that you pass on."
                    : "Of somebody who has an account."
                }
              />
              <datalist id="people">
                ${(people.items ?? []).map(
                  ({ id, email, name }) => html`
                    <option key=${id} value=${email}>
                      ${name}
                    </option>
                  `,
                )}
              </datalist>
            `
            : html`
              <${TextField}
                ...${form.bind("user_id")}
                label="User id"
                autocomplete="off"
                autofocus
                hint="They find it on their account page; your operator makes accounts."
              />
            `
        }
        <${Select} ...${form.bind("role")} label="Role" options=${roleOptions(PROJECT_ROLES, project.id)} />
      <//>
    <//>
  `;
}

/** Return the user with this address, or a new user with a password if there is none and the reader may make one. */
async function person(email, mayMake) {
  const found = (await get("/users", { email })).data[0];
  if (found) return { user: found };
  if (!mayMake)
    throw new ApiError({
      status: 400,
      param: "email",
      message: "Nobody here has this address: an owner or an admin of the organization makes accounts.",
    });
  const password = newPassword();
  return { user: await post("/users", { email, password }), password };
}

function ChangeRole({ projectId, member, onClose }) {
  const form = useForm({ role: member.role }, async ({ role }) => {
    await post(pathOf(projectId, `/users/${member.id}`), { role });
    invalidate(pathOf(projectId, "/users"));
    toast(`${member.email} is ${roleName(role).toLowerCase()} now`);
    onClose();
  });
  return html`
    <${Dialog} title="Role of ${member.name || member.email}" onClose=${onClose}>
      <${Form} form=${form} verb="Save" what="change the role" onCancel=${onClose}>
        <${Select} ...${form.bind("role")} label="Role" options=${roleOptions(PROJECT_ROLES, projectId)} />
      <//>
    <//>
  `;
}

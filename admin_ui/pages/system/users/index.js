// The list of the people who may sign in, each with the role in the whole organization.

import { Badge } from "../../../components/badge.js";
import { Button } from "../../../components/button.js";
import { Icon } from "../../../components/icons.js";
import { Menu } from "../../../components/menu.js";
import { Page } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { useList } from "../../../lib/data.js";
import { html, useState } from "../../../lib/html.js";
import { useShortcut } from "../../../lib/rules/keys.js";
import { ORGANIZATION_ROLES, mayTouch, roleName } from "../../../lib/rules/roles.js";
import { here, useQuery } from "../../../lib/router.js";
import { can, useSession } from "../../../lib/session.js";
import { SystemTabs } from "../tabs.js";
import { Act, actions } from "./dialogs.js";
import { Drawer } from "./drawer.js";
import { NO_ROLE, signsIn } from "./words.js";

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

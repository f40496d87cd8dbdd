// The choice of the project that is shown: all of the organization's, or one. A text box narrows the list of many
// projects.

import { html, useState } from "../lib/html.js";
import { lookAt, useProjectId, useProjects } from "../lib/projects.js";
import { isMember, useSession } from "../lib/session.js";
import { Icon } from "./icons.js";
import { Menu } from "./menu.js";

const MANY = 8;
const MAX_SHOWN = 40;

export function ProjectSwitch() {
  const { who } = useSession();
  const all = useProjects() ?? [];
  const current = useProjectId();
  const [typed, type] = useState("");
  const live = all.filter(({ status }) => status !== "archived");
  const found = live.filter(({ name, id }) => `${name} ${id}`.toLowerCase().includes(typed.toLowerCase()));
  const name = live.find(({ id }) => id === current)?.name ?? current ?? "All tenants";
  const entries = found.slice(0, MAX_SHOWN).map((project) => ({
    title: project.name,
    checked: project.id === current,
    onClick: () => (type(""), lookAt(project.id)),
  }));
  const items = isMember()
    ? entries
    : [{ title: "All tenants", checked: current === null, onClick: () => lookAt(null) }, null, ...entries];
  return html`
    <div class="switch">
      <span class="switch-organization">${who.organization?.name ?? "Organization"}</span>
      <span class="switch-line" aria-hidden="true">
        /
      </span>
      <${Menu}
        label="Project: ${name}"
        look="button quiet switch-project"
        items=${items}
        button=${html`
          <span class="ellipsis">${name}</span>
          <${Icon} name="down" />
        `}
      >
        ${
          live.length > MANY &&
          html`
            <input
              class="input menu-filter"
              type="search"
              placeholder="Find a tenant"
              aria-label="Find a tenant"
              value=${typed}
              onInput=${(event) => type(event.target.value)}
            />
          `
        }
      <//>
    </div>
  `;
}

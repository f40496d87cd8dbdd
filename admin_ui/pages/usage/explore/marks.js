// The active filters of the explorer, each with a button that removes it.

import { Button } from "../../../components/button.js";
import { html } from "../../../lib/html.js";
import { setQuery } from "../../../lib/router.js";
import { GROUPS, useNameOf } from "./data.js";

/** The active filters, except the project, which is chosen above. */
export function Marks({ filters, range }) {
  return GROUPS.filter(([, , name]) => name !== "project" && filters[name]).map(
    (group) => html`<${Mark} key=${group[0]} group=${group} id=${filters[group[2]]} range=${range} />`,
  );
}

function Mark({ group, id, range }) {
  const [, title, filter] = group;
  const name = useNameOf(group, id, range);
  return html`
    <span class="mark">
      <span title=${id}>
        ${title} ${name}
      </span>
      <${Button}
        kind="quiet"
        small
        icon="close"
        label="No longer by ${title.toLowerCase()}"
        onClick=${() => setQuery({ [filter]: null })}
      />
    </span>
  `;
}

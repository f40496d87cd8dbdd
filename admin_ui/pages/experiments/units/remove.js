// The dialog that removes a layer or a holdout.

import { Button } from "../../../components/button.js";
import { Confirm } from "../../../components/dialog.js";
import { toast } from "../../../components/toast.js";
import { del } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";

export const removal = (what, path, mayWrite, ask) => ({
  key: "act",
  title: "",
  sort: false,
  csv: false,
  class: "shrink",
  hide: !mayWrite,
  render: ({ name, experiments = [] }) =>
    experiments.length === 0 &&
    name !== "default" &&
    html`
      <${Button}
        kind="quiet"
        small
        icon="trash"
        label="Remove ${name}"
        onClick=${() => ask({ remove: { what, path, name } })}
      />
    `,
});

export function Remove({ projectId, what, path, name, onClose }) {
  return html`
    <${Confirm}
      title="Remove the ${what} ${name}?"
      verb="Remove ${what}"
      onClose=${onClose}
      act=${async () => {
        await del(pathOf(projectId, `${path}/${encodeURIComponent(name)}`));
        invalidate(pathOf(projectId, path));
        toast(`The ${what} ${name} is removed`);
      }}
    >
      <p>No experiment may name it then. One of the same name later has other units.</p>
    <//>
  `;
}

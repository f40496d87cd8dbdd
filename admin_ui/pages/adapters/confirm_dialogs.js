// The dialogs that confirm an action on a version or an adapter, such as promoting or deleting it; each says what will
// change, and for whom.

import { Confirm } from "../../components/dialog.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate, useApi } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { navigate } from "../../lib/router.js";
import { pathOf } from "./paths.js";

const changed = ({ project_id: id }) => invalidate(`/projects/${encodeURIComponent(id)}/`);
const at = (adapter, version) => `${pathOf(adapter.project_id, adapter.name)}/versions/${version}`;

export function Promote({ adapter, version, onClose }) {
  return html`
    <${Confirm}
      title="Promote version ${version}?"
      verb="Promote"
      danger=${false}
      onClose=${onClose}
      act=${async () => {
        await post(`${at(adapter, version)}/promote`);
        changed(adapter);
        toast(`Version ${version} of ${adapter.name} is current`);
      }}
    >
      <p>
        Requests for <code>${adapter.model}</code> get version ${version}
        ${adapter.version === null ? "" : ` instead of ${adapter.version}`} within a second, on every gateway. Those
        that run finish as they began.
      </p>
      <p>Aliases stay where they point. You can roll back.</p>
    <//>
  `;
}

export function Retire({ adapter, row, onClose }) {
  return html`
    <${Confirm}
      title="Retire version ${row.version}?"
      verb="Retire the version"
      name=${row.id}
      onClose=${onClose}
      act=${async () => {
        await post(`${at(adapter, row.version)}/retire`);
        changed(adapter);
        toast(`Version ${row.version} is retired`);
      }}
    >
      <p>
        New requests for <code>${row.model}</code> are refused; those that run finish. Version${" "}
        ${adapter.version ?? "–"}, which is current, is not touched.
      </p>
      <p>A retired version cannot be promoted again; its files stay until it is deleted.</p>
    <//>
  `;
}

export function DeleteVersion({ adapter, row, onClose, onDone }) {
  return html`
    <${Confirm}
      title="Delete version ${row.version}?"
      verb="Delete the version"
      name=${row.id}
      onClose=${onClose}
      act=${async () => {
        await del(at(adapter, row.version));
        onDone();
        changed(adapter);
        toast(`Version ${row.version} is deleted`);
      }}
    >
      <p>Its files leave the store soon, unless another version has the same. Its number is never used again.</p>
    <//>
  `;
}

export function RollBack({
  adapter: { name, version, previous_version: previous, model, project_id: projectId },
  onClose,
}) {
  return html`
    <${Confirm}
      title="Roll back to version ${previous}?"
      verb="Roll back"
      danger=${false}
      onClose=${onClose}
      act=${async () => {
        await post(`${pathOf(projectId, name)}/rollback`);
        invalidate(`/projects/${encodeURIComponent(projectId)}/`);
        toast(`Version ${previous} of ${name} is current again`);
      }}
    >
      <p>
        Requests for <code>${model}</code> get version ${previous} instead of ${version} within a second, on every
        gateway. Those that run finish with version ${version}.
      </p>
      <p>Rolling back again leads back to version ${version}.</p>
    <//>
  `;
}

export function DeleteAdapter({ projectId, name, version, onClose }) {
  const aliases = useApi(`/projects/${encodeURIComponent(projectId)}/aliases`, { limit: 100 });
  const gone = (aliases.data?.data ?? []).filter(({ adapter }) => adapter === name);
  return html`
    <${Confirm}
      title="Delete ${name}?"
      verb="Delete the adapter"
      name=${name}
      onClose=${onClose}
      act=${async () => {
        await del(pathOf(projectId, name));
        invalidate(`/projects/${encodeURIComponent(projectId)}/`);
        navigate(`/admin/adapters?project=${encodeURIComponent(projectId)}`, { replace: true });
        toast(`${name} is deleted`);
      }}
    >
      <p>
        All its versions go${version === null ? "" : `, version ${version} that answers now included`}: new requests
        for it are refused with “model not found”; those that run finish.
      </p>
      ${
        gone.length > 0 &&
        html`
          <p>
            ${gone.length === 1 ? "This alias goes" : "These aliases go"} with it:${" "}
            ${gone.map(({ name }) => name).join(", ")}.
          </p>
        `
      }
      <p>Shares of it end. What it was used for stays in usage and invoices.</p>
    <//>
  `;
}

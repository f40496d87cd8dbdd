// The menu of a key's actions, and the dialog of each.

import { Confirm } from "../../../components/dialog.js";
import { toast } from "../../../components/toast.js";
import { del, post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { ChangeKey, NewKey, RotateKey } from "./forms.js";
import { KeyShownOnce } from "./shown_once.js";

export function actions(key, setAct) {
  const item = (title, what, icon, more) => ({
    title,
    icon,
    onClick: () => setAct({ what, key }),
    ...more,
  });
  return [
    item("Change …", "change", "keys"),
    item("Rotate …", "rotate", "refresh"),
    key.suspended_at ? item("Resume", "resume", "play") : item("Suspend …", "suspend", "pause"),
    null,
    item("Revoke …", "revoke", "trash", { danger: true }),
  ];
}

export function Act({ act: { what, key, made }, projectId, accounts, onMade, onClose }) {
  const path = key && pathOf(projectId, `/api_keys/${key.id}`);
  const done = (text) => {
    invalidate(pathOf(projectId, "/api_keys"));
    toast(text);
  };
  if (what === "create")
    return html`<${NewKey} projectId=${projectId} accounts=${accounts} onMade=${onMade} onClose=${onClose} />`;
  if (what === "change") return html`<${ChangeKey} projectId=${projectId} apiKey=${key} onClose=${onClose} />`;
  if (what === "rotate")
    return html`<${RotateKey} projectId=${projectId} apiKey=${key} onMade=${onMade} onClose=${onClose} />`;
  if (what === "made") return html`<${KeyShownOnce} apiKey=${made} title="Your new key" onClose=${onClose} />`;
  if (what === "resume") {
    return html`
      <${Confirm}
        title="Resume ${key.name}?"
        verb="Resume key"
        danger=${false}
        onClose=${onClose}
        act=${async () => (await post(`${path}/resume`), done(`${key.name} works again`))}
      >
        <p>Programs that hold it can use this tenant's models again.</p>
      <//>
    `;
  }
  if (what === "suspend") {
    return html`
      <${Confirm}
        title="Suspend ${key.name}?"
        verb="Suspend key"
        onClose=${onClose}
        act=${async () => (await post(`${path}/suspend`), done(`${key.name} is suspended`))}
      >
        <p>
          Every gateway refuses it within a second. Requests that run end as they would. It works again once
          it is resumed.
        </p>
      <//>
    `;
  }
  return html`
    <${Confirm}
      title="Revoke ${key.name}?"
      verb="Revoke key"
      name=${key.name}
      onClose=${onClose}
      act=${async () => (await del(path), done(`${key.name} is revoked`))}
    >
      <p>
        Programs that use it are refused within a second, for good. Its usage and cost stay on the books.
      </p>
    <//>
  `;
}

// One version in a drawer: what it is, what was found, and what can be done with it.

import { Badge } from "../../components/badge.js";
import { Button, Code } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Loaded } from "../../components/feedback.js";
import { Time } from "../../components/numbers.js";
import { Facts } from "../../components/page.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate, useApi } from "../../lib/data.js";
import { bytes } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { setQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { pathOf } from "./adapter.js";
import { tryIt } from "./list.js";
import { Rejection, Report } from "./report.js";
import { TONE } from "./versions.js";

export function Version({ adapter, version, onClose }) {
  const found = useApi(`${pathOf(adapter.project_id, adapter.name)}/versions/${encodeURIComponent(version)}`);
  const [asking, ask] = useState(null);
  const row = found.data;
  const close = () => ask(null);
  return html`<${Dialog} side title=${`${adapter.name}, version ${version}`} onClose=${onClose} footer=${row && html`<${Actions} adapter=${adapter} row=${row} ask=${ask} />`}>
    <${Loaded} from=${found} what="load the version">${() => html`<div class="stack">
      ${row.state === "rejected" && html`<${Rejection} message=${row.reason} title="This version was refused" />`}
      <${Facts} rows=${[
        ["State", html`<span class="row"><${Badge} dot tone=${TONE[row.state]}>${row.state}<//>${row.current && html`<${Badge} tone="info">current<//>`}</span>`],
        ["In this state since", html`<${Time} at=${row.changed_at} />`],
        ["Model id", html`<${Code} text=${row.model} what="model id" />`],
        ["Added", html`<${Time} at=${row.created_at} />`],
        ["From", row.source],
        ["Rank", row.rank],
        ["Size", bytes(row.size_bytes)],
        ["Digest", html`<${Code} text=${row.digest} max=${20} what="digest" />`],
      ]} />
      <${Report} report=${row.report} probe=${row.probe} />
    </div>`}<//>
    ${asking === "promote" && html`<${Promote} adapter=${adapter} version=${row.version} onClose=${close} />`}
    ${asking === "retire" && html`<${Retire} adapter=${adapter} row=${row} onClose=${close} />`}
    ${asking === "delete" && html`<${Delete} adapter=${adapter} row=${row} onClose=${close} onDone=${onClose} />`}
  <//>`;
}

function Actions({ adapter, row, ask }) {
  const mayWrite = can("adapters.write", adapter.project_id);
  const isOver = ["retired", "rejected"].includes(row.state);
  return html`
    ${mayWrite && isOver && html`<${Button} icon="trash" onClick=${() => ask("delete")}>Delete<//>`}
    ${mayWrite && row.state === "ready" && !row.current && html`<${Button} onClick=${() => ask("retire")}>Retire<//>`}
    ${!row.current && adapter.version !== null && row.state !== "rejected" && html`<${Button} onClick=${() => setQuery({ version: null, compare: `${adapter.version}..${row.version}` }, { push: true })}>Compare<//>`}
    ${row.state === "ready" && html`<${Button} icon="playground" href=${tryIt({ ...row, project_id: adapter.project_id })}>Try it<//>`}
    ${mayWrite && row.state === "ready" && !row.current && html`<${Button} kind="primary" onClick=${() => ask("promote")}>Promote<//>`}`;
}

const changed = ({ project_id: id }) => invalidate(`/projects/${encodeURIComponent(id)}/`);
const at = (adapter, version) => `${pathOf(adapter.project_id, adapter.name)}/versions/${version}`;

export function Promote({ adapter, version, onClose }) {
  return html`<${Confirm} title=${`Promote version ${version}?`} verb="Promote" danger=${false} onClose=${onClose} act=${async () => {
    await post(`${at(adapter, version)}/promote`);
    changed(adapter);
    toast(`Version ${version} of ${adapter.name} is current`);
  }}>
    <p>Requests for <code>${adapter.model}</code> get version ${version}${adapter.version === null ? "" : ` instead of ${adapter.version}`} within a second, on every gateway. Those that run finish as they began.</p>
    <p>Aliases stay where they point. You can roll back.</p>
  <//>`;
}

function Retire({ adapter, row, onClose }) {
  return html`<${Confirm} title=${`Retire version ${row.version}?`} verb="Retire the version" name=${row.id} onClose=${onClose} act=${async () => {
    await post(`${at(adapter, row.version)}/retire`);
    changed(adapter);
    toast(`Version ${row.version} is retired`);
  }}>
    <p>New requests for <code>${row.model}</code> are refused; those that run finish. Version ${adapter.version ?? "–"}, which is current, is not touched.</p>
    <p>A retired version cannot be promoted again; its files stay until it is deleted.</p>
  <//>`;
}

function Delete({ adapter, row, onClose, onDone }) {
  return html`<${Confirm} title=${`Delete version ${row.version}?`} verb="Delete the version" name=${row.id} onClose=${onClose} act=${async () => {
    await del(at(adapter, row.version));
    onDone();
    changed(adapter);
    toast(`Version ${row.version} is deleted`);
  }}>
    <p>Its files leave the store soon, unless another version has the same. Its number is never used again.</p>
  <//>`;
}

// The drawer about one version: its facts, the findings of its inspection, and its actions.

import { Badge } from "../../components/badge.js";
import { Button, Code } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Loaded } from "../../components/feedback.js";
import { Time } from "../../components/numbers.js";
import { Facts } from "../../components/page.js";
import { useApi } from "../../lib/data.js";
import { bytes } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { setQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { DeleteVersion, Promote, Retire } from "./confirm_dialogs.js";
import { pathOf, tryIt } from "./paths.js";
import { Rejection, Report } from "./report.js";
import { TONE } from "./states.js";

export function Version({ adapter, version, onClose }) {
  const found = useApi(`${pathOf(adapter.project_id, adapter.name)}/versions/${encodeURIComponent(version)}`);
  const [asking, ask] = useState(null);
  const row = found.data;
  const close = () => ask(null);
  return html`
    <${Dialog}
      side
      title="${adapter.name}, version ${version}"
      onClose=${onClose}
      footer=${row && html`<${Actions} adapter=${adapter} row=${row} ask=${ask} />`}
    >
      <${Loaded} from=${found} what="load the version">
        ${() => html`
          <div class="stack">
            ${row.state === "rejected" && html`<${Rejection} message=${row.reason} title="This version was refused" />`}
            <${Facts}
              rows=${[
                [
                  "State",
                  html`<span class="row">
                    <${Badge} dot tone=${TONE[row.state]}>
                      ${row.state}
                    <//>
                    ${row.current && html`<${Badge} tone="info">current<//>`}
                  </span>`,
                ],
                ["In this state since", html`<${Time} at=${row.changed_at} />`],
                ["Model id", html`<${Code} text=${row.model} what="model id" />`],
                ["Added", html`<${Time} at=${row.created_at} />`],
                ["From", row.source],
                ["Rank", row.rank],
                ["Size", bytes(row.size_bytes)],
                ["Digest", html`<${Code} text=${row.digest} max=${20} what="digest" />`],
              ]}
            />
            <${Report} report=${row.report} probe=${row.probe} />
          </div>
        `}
      <//>
      ${asking === "promote" && html`<${Promote} adapter=${adapter} version=${row.version} onClose=${close} />`}
      ${asking === "retire" && html`<${Retire} adapter=${adapter} row=${row} onClose=${close} />`}
      ${
        asking === "delete" &&
        html`<${DeleteVersion} adapter=${adapter} row=${row} onClose=${close} onDone=${onClose} />`
      }
    <//>
  `;
}

function Actions({ adapter, row, ask }) {
  const mayWrite = can("adapters.write", adapter.project_id);
  const isOver = ["retired", "rejected"].includes(row.state);
  return html`
    ${
      mayWrite &&
      isOver &&
      html`
        <${Button} icon="trash" onClick=${() => ask("delete")}>
          Delete
        <//>
      `
    }
    ${mayWrite && row.state === "ready" && !row.current && html`<${Button} onClick=${() => ask("retire")}>Retire<//>`}
    ${
      !row.current &&
      adapter.version !== null &&
      row.state !== "rejected" &&
      html`
        <${Button}
          onClick=${() => setQuery({ version: null, compare: `${adapter.version}..${row.version}` }, { push: true })}
        >
          Compare
        <//>
      `
    }
    ${
      row.state === "ready" &&
      html`
        <${Button} icon="playground" href=${tryIt({ ...row, project_id: adapter.project_id })}>
          Try it
        <//>
      `
    }
    ${
      mayWrite &&
      row.state === "ready" &&
      !row.current &&
      html`
        <${Button} kind="primary" onClick=${() => ask("promote")}>
          Promote
        <//>
      `
    }
  `;
}

// The page that adds an adapter, or a version of one, from the reader's files or from a URL.

import { Dialog } from "../../../components/dialog.js";
import { Select } from "../../../components/form.js";
import { Choice } from "../../../components/tabs.js";
import { invalidate } from "../../../lib/data.js";
import { html, useState } from "../../../lib/html.js";
import { useProjects } from "../../../lib/projects.js";
import { setQuery } from "../../../lib/router.js";
import { can, useSession } from "../../../lib/session.js";
import { FromFiles } from "./from_files.js";
import { FromSource } from "./from_source.js";

/**
 * The dialog that adds an adapter. how: "file" or "source". files: files that were dropped already. name: the adapter
 * that gets a new version.
 */
export function Upload({ how, files, projectId, name = "", onClose, onDone }) {
  const mayImport = useSession().who.imports_from_sources;
  const [busy, setBusy] = useState(false);
  const [chosen, choose] = useState(projectId ?? "");
  const projects = (useProjects() ?? []).filter(({ id, status }) => status !== "archived" && can("adapters.write", id));
  const project = chosen || (projects.length === 1 ? projects[0].id : "");
  const done = (adapter) => (invalidate(`/projects/${encodeURIComponent(project)}/`), onDone?.(adapter));
  const props = { projectId: project, name, setBusy, onDone: done, onClose };
  return html`
    <${Dialog}
      side
      locked=${busy}
      title=${name ? `New version of ${name}` : "Add an adapter"}
      onClose=${onClose}
    >
      <div class="stack upload">
        ${
          !busy &&
          mayImport &&
          html`
            <${Choice}
              label="Where it comes from"
              value=${how}
              onValue=${(how) => setQuery({ add: how })}
              options=${[["file", "From this computer"], ["source", "From a URL or the hub"]]}
            />
          `
        }
        ${
          !projectId &&
          html`
            <${Select}
              label="Tenant"
              hint="Whose adapter it is: its keys can call it."
              value=${project}
              onValue=${choose}
              disabled=${busy}
              options=${[["", "Choose a tenant"], ...projects.map(({ id, name }) => [id, name])]}
            />
          `
        }
        ${
          how === "source" && mayImport
            ? html`<${FromSource} ...${props} />`
            : html`<${FromFiles} ...${props} files=${files} />`
        }
      </div>
    <//>
  `;
}

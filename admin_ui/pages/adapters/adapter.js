// The page of one adapter: its versions, their traffic, the settings of all of them, and the names by which others may
// call it.

import { Button } from "../../components/button.js";
import { Empty, ErrorBox, Loaded } from "../../components/feedback.js";
import { Icon } from "../../components/icons.js";
import { Menu } from "../../components/menu.js";
import { Num } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Tabs } from "../../components/tabs.js";
import { toast } from "../../components/toast.js";
import { copy } from "../../lib/clipboard.js";
import { useApi } from "../../lib/data.js";
import { count } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useProjectNames } from "../../lib/projects.js";
import { setQuery, to, useLocation, useQuery } from "../../lib/router.js";
import { can, isMember } from "../../lib/session.js";
import { useRange } from "../../lib/format/time.js";
import { DeleteAdapter, RollBack } from "./confirm_dialogs.js";
import { Aliases } from "./aliases.js";
import { useTraffic } from "./all.js";
import { DropVeil } from "./upload/drop_zone.js";
import { pathOf, tryIt } from "./paths.js";
import { Settings } from "./settings.js";
import { Shares } from "./shares.js";
import { Traffic } from "./traffic.js";
import { Upload } from "./upload/index.js";
import { Versions } from "./versions.js";

export default function Adapter({ params: { project: projectId, name } }) {
  const adapter = useApi(pathOf(projectId, name));
  const names = useProjectNames();
  const [adding] = useQuery("add");
  const [dropped, setDropped] = useState(null);
  const mayWrite = can("adapters.write", projectId);
  const add = (files) => (setDropped(files), setQuery({ add: "file" }, { push: true }));
  const close = () => (setDropped(null), setQuery({ add: null }));
  const crumbs = [
    ["Adapters", "/admin/adapters"],
    ...(isMember() ? [] : [[names(projectId), `/admin/adapters?project=${encodeURIComponent(projectId)}`]]),
  ];
  const shown = adapter.data && { ...adapter.data, project_id: projectId };
  if (adapter.error?.isMissing) {
    return html`
      <${Page} title=${name} crumbs=${crumbs}>
        <${Empty}
          icon="adapters"
          title="There is no adapter of this name"
          action=${html`<${Button} href="/admin/adapters">All adapters<//>`}
        >
          It may have been deleted, or it is another tenant's.
        <//>
      <//>
    `;
  }
  return html`
    <${Page}
      title=${name}
      crumbs=${crumbs}
      lead=${shown && html`<${Lead} adapter=${shown} />`}
      tabs=${html`<${AdapterTabs} projectId=${projectId} name=${name} />`}
      actions=${
        shown &&
        html`
          ${
            shown.version !== null &&
            html`
              <${Button} icon="playground" href=${tryIt(shown)}>
                Try it
              <//>
            `
          }
          ${
            mayWrite &&
            html`
              <${Button} kind="primary" icon="upload" onClick=${() => add(null)}>
                New version
              <//>
            `
          }
          <${More} adapter=${shown} mayWrite=${mayWrite} />
        `
      }
    >
      ${
        adapter.data === undefined
          ? html`
            <${Loaded} from=${adapter} what="load the adapter">
              ${() => null}
            <//>
          `
          : html`
            <${ErrorBox} error=${adapter.error} what="load the adapter" retry=${adapter.reload} />
            <${View} adapter=${shown} />
          `
      }
      ${mayWrite && !adding && html`<${DropVeil} label="Drop to upload a version of ${name}" onFiles=${add} />`}
      ${
        mayWrite &&
        adding &&
        html`<${Upload} how=${adding} files=${dropped} projectId=${projectId} name=${name} onClose=${close} />`
      }
    <//>
  `;
}

function View({ adapter }) {
  const view = useLocation().path.split("/")[5] ?? "";
  if (view === "traffic") return html`<${Traffic} adapter=${adapter} />`;
  if (view === "settings") return html`<${Settings} adapter=${adapter} />`;
  if (view === "access")
    return html`
      <${Aliases} adapter=${adapter} />
      ${can("organization.read") && html`<${Shares} adapter=${adapter} />`}
    `;
  return html`<${Versions} adapter=${adapter} />`;
}

function AdapterTabs({ projectId, name }) {
  const tab = (title, ...view) => [title, to("adapters", projectId, name, ...view)];
  const access = can("organization.read") ? "Aliases and shares" : "Aliases";
  return html`
    <${Tabs}
      label="Views of the adapter"
      tabs=${[
        tab("Versions"),
        ...(can("billing.read", projectId) ? [tab("Traffic", "traffic")] : []),
        tab("Settings", "settings"),
        tab(access, "access"),
      ]}
    />
  `;
}

function Lead({ adapter }) {
  const range = useRange();
  const traffic = useTraffic(range);
  const row = traffic?.(adapter.id);
  if (adapter.version === null)
    return html`
      <b>No version is current</b>: requests for <code>${adapter.model}</code> are refused until one is ready.
    `;
  const requests = row?.num_requests ?? 0;
  return html`
    <b>Version ${adapter.version}</b> answers as <code>${adapter.model}</code>
    ${
      traffic !== null &&
      html`
        ;${" "}
        <a href="/admin/requests?adapter=${encodeURIComponent(adapter.id)}">
          <b>${count(requests)}</b> requests
        </a>${" "}
        in ${range.name ? `the ${range.label.toLowerCase()}` : range.label}
        ${requests > 0 && html`, <${Num} value=${row.num_errors / requests} kind="percent" /> of them failed`}
      `
    }
    .
  `;
}

function More({ adapter, mayWrite }) {
  const [asking, ask] = useState(null);
  const { name, version, previous_version: previous, project_id: projectId } = adapter;
  const items = [
    {
      title: "Copy the model id",
      icon: "copy",
      onClick: async () => (await copy(adapter.model)) && toast("Copied the model id"),
    },
    ...(mayWrite && previous !== null
      ? [{ title: `Roll back to version ${previous}`, icon: "left", onClick: () => ask("rollback") }]
      : []),
    ...(mayWrite
      ? [null, { title: "Delete the adapter", icon: "trash", danger: true, onClick: () => ask("delete") }]
      : []),
  ];
  return html`
    <${Menu}
      label="More actions"
      align="end"
      look="button secondary icon-only"
      button=${html`<${Icon} name="more" />`}
      items=${items}
    />
    ${asking === "rollback" && html`<${RollBack} adapter=${adapter} onClose=${() => ask(null)} />`}
    ${
      asking === "delete" &&
      html`<${DeleteAdapter} projectId=${projectId} name=${name} version=${version} onClose=${() => ask(null)} />`
    }
  `;
}

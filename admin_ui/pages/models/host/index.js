// The page of one host: its agent, its replicas, the models that it could not prepare, and its actions.

import { Button } from "../../../components/button.js";
import { Empty, Loaded, Notice } from "../../../components/feedback.js";
import { Icon } from "../../../components/icons.js";
import { Menu } from "../../../components/menu.js";
import { Facts, Page, Section } from "../../../components/page.js";
import { useAll, useApi } from "../../../lib/data.js";
import { html, useState } from "../../../lib/html.js";
import { can } from "../../../lib/session.js";
import { Gauges, HOSTS_EVERY_MS, States, inShort } from "../hosts.js";
import { labelsOf } from "../words.js";
import { DrainHost, LabelHost, RemoveHost, UseAgain } from "./changes.js";
import { Failures, Nodes, Running } from "./tables.js";
import { away, lease, pathOf, serversOf } from "./words.js";

const CRUMBS = [["Models", "/admin/models"]];
const DIALOGS = { drain: DrainHost, undrain: UseAgain, label: LabelHost, remove: RemoveHost };

export default function HostView({ params: { host: id } }) {
  const host = useApi(pathOf(id), {}, { every: HOSTS_EVERY_MS });
  const running = useAll("/replicas", {}, { every: HOSTS_EVERY_MS });
  const [asking, ask] = useState(null);
  if (host.error?.isMissing) {
    return html`
      <${Page} title="Host" crumbs=${CRUMBS}>
        <${Empty}
          icon="system"
          title="There is no host with this id"
          action=${html`<${Button} href="/admin/models">All hosts<//>`}
        >
          It may have been removed.
        <//>
      <//>
    `;
  }
  const Asked = DIALOGS[asking];
  return html`
    <${Page}
      title=${host.data?.name ?? "Host"}
      crumbs=${CRUMBS}
      lead=${
        host.data &&
        html`
          <span class="row">
            <${States} host=${host.data} />
            <span>${inShort(host.data)}</span>
          </span>
        `
      }
      actions=${host.data && can("pools.write") && html`<${Actions} host=${host.data} ask=${ask} />`}
    >
      <${Loaded} from=${host} what="load the host">
        ${(data) => html`<${View} host=${data} running=${running} />`}
      <//>
      ${Asked && host.data && html`<${Asked} host=${host.data} onClose=${() => ask(null)} />`}
    <//>
  `;
}

function Actions({ host, ask }) {
  const items = [
    {
      title: "Remove",
      hint: "for good; its keys open nothing any more",
      icon: "trash",
      danger: true,
      onClick: () => ask("remove"),
    },
  ];
  return html`
    <${Button} onClick=${() => ask("label")}>Labels<//>
    ${
      host.is_drained
        ? html`
          <${Button} kind="primary" icon="play" onClick=${() => ask("undrain")}>
            Use again
          <//>
        `
        : html`
          <${Button} icon="pause" onClick=${() => ask("drain")}>
            Drain
          <//>
        `
    }
    <${Menu}
      label="More actions"
      align="end"
      look="button secondary icon-only"
      button=${html`<${Icon} name="more" />`}
      items=${items}
    />
  `;
}

function View({ host, running }) {
  const here = running.data?.filter(({ host_id: id }) => id === host.id);
  return html`
    ${
      !host.is_alive &&
      html`
        <${Notice} tone="warn" title="No agent runs there">
          ${away(host)}
        <//>
      `
    }
    <${Section} title="Memory" hint="What replicas take is estimated when a model is prepared.">
      <${Gauges} host=${host} />
    <//>
    <${Section} title="What runs there">
      <${Running} here=${here} from=${running} total=${host.num_replicas} />
    <//>
    ${
      host.placement === "ray" &&
      html`
        <${Section}
          title="Nodes"
          hint="Machines of the Ray cluster, as the agent sees them. Ray chooses where each engine runs."
        >
          <${Nodes} rows=${host.nodes} />
        <//>
      `
    }
    ${
      host.failures.length > 0 &&
      html`
        <${Section}
          title="Models that it could not prepare"
          hint="No replica of them starts there until an attempt succeeds."
        >
          <${Failures} rows=${host.failures} />
        <//>
      `
    }
    <${Section} title="The machine" card>
      <${Facts}
        rows=${[
          ["Labels", labelsOf(host).length ? html`<code>${labelsOf(host).join(" ")}</code>` : "none"],
          ["Version of its agent", host.version ?? "no agent yet"],
          ["Lease", lease(host)],
          [
            "Keys for other hosts",
            host.is_joined ? "yes" : "none: its engines serve the gateways of its own machine alone",
          ],
          ["Starts servers of", serversOf(host)],
          ["Id", html`<code>${host.id}</code>`],
        ]}
      />
    <//>
  `;
}

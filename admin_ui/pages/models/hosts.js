// The table of the hosts on which agents start engines: memory, accelerators, and how much of them is taken.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Gauge } from "../../components/charts/gauge.js";
import { Empty, Loaded, Notice } from "../../components/feedback.js";
import { useAll, useApi } from "../../lib/data.js";
import { ago } from "../../lib/format/time.js";
import { bytes, plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { labelsOf } from "./words.js";

export const HOSTS_EVERY_MS = 10_000;

export function Hosts() {
  const hosts = useAll("/hosts", {}, { every: HOSTS_EVERY_MS });
  return html`
    ${can("organization.read") && html`<${UnseenUsage} />`}
    <${Loaded} from=${hosts} what="load the hosts">
      ${(list) =>
        list.length === 0
          ? html`
            <${Empty} icon="system" title="No host yet" command="lorikeet serve">
              A host appears once an agent has started there; <code>lorikeet serve</code> runs one for its
              machine.
            <//>
          `
          : html`
            <div class="stack">
              ${list.map((host) => html`<${Host} key=${host.id} host=${host} />`)}
            </div>
          `}
    <//>
  `;
}

/** The notice of usage in journals of gateways that are gone: the only data of a lost host that has to be recovered. */
function UnseenUsage() {
  const found = useApi("/reconciliation", {}, { every: HOSTS_EVERY_MS });
  const lost = found.data?.lost_journals ?? [];
  if (lost.length === 0) return null;
  const requests = lost.reduce((sum, { open_requests: number }) => sum + number, 0);
  const machines = [...new Set(lost.map(({ folder }) => folder?.split(":")[0]).filter(Boolean))];
  const last = Math.max(...lost.map(({ heard_at: at }) => at));
  return html`
    <${Notice}
      tone="warn"
      title="Usage not yet seen"
      action=${html`<${Button} href="/admin/system/reconciliation">Which journals<//>`}
    >
      ${plural(requests, "request")} ${requests === 1 ? "is" : "are"} in journals of${" "}
      ${plural(lost.length, "gateway")} that ${lost.length === 1 ? "is" : "are"} gone, the last one heard of${" "}
      ${ago(last)}
      ${machines.length ? html` (on ${machines.join(", ")})` : ""}. They are billed once the gateway runs again on
      its host, or its data folder is brought to another one.
    <//>
  `;
}

function Host({ host }) {
  return html`
    <article class="engine">
      <header class="engine-head">
        <h3>
          <a href=${to("hosts", host.id)}>${host.name}</a>
        </h3>
        <${States} host=${host} />
        <span class="faint">${inShort(host)}</span>
      </header>
      <${Gauges} host=${host} />
    </article>
  `;
}

const sumOf = (rows, of) => rows.reduce((sum, row) => sum + row[of], 0);

export function inShort({ placement, nodes, num_processors: own, num_replicas: number, gpus }) {
  const isCluster = placement === "ray";
  const processors = isCluster ? sumOf(nodes, "num_processors") : own;
  const numGpus = isCluster ? sumOf(nodes, "num_gpus") : gpus.length;
  return [
    isCluster && plural(nodes.length, "node"),
    plural(processors, "processor"),
    numGpus && plural(numGpus, "GPU"),
    plural(number, "replica"),
  ]
    .filter(Boolean)
    .join(" · ");
}

/**
 * The state of a host: whether an agent runs, whether the host is drained, its labels, and models that it could not
 * prepare.
 */
export function States({ host }) {
  const { is_alive: isAlive, is_drained: isDrained, failures, placement } = host;
  return html`
    <${Badge} dot tone=${isAlive ? "good" : "bad"}>
      ${isAlive ? "agent runs" : "no agent"}
    <//>
    ${placement === "ray" && html`<${Badge}>Ray cluster<//>`}
    ${
      isDrained &&
      html`
        <${Badge} dot tone="warn">
          drained
        <//>
      `
    }
    ${
      failures.length > 0 &&
      html`
        <${Badge} dot tone="warn">
          ${plural(failures.length, "model")} not prepared
        <//>
      `
    }
    ${labelsOf(host).map((label) => html`<${Badge} key=${label}>${label}<//>`)}
  `;
}

export function Gauges({ host }) {
  const { num_replicas: number, gpus, nodes } = host;
  const onGpus = sumOf(gpus, "num_replicas");
  const memory = host.memory_bytes + sumOf(nodes, "memory_bytes");
  return html`
    <div class="engine-gauges">
      <${Memory} label="Memory" host=${host} of=${{ ...host, memory_bytes: memory, num_replicas: number - onGpus }} />
      ${gpus.map((gpu, index) => html`<${Memory} key=${index} label="GPU ${index}" host=${host} of=${gpu} />`)}
    </div>
  `;
}

function Memory({ label, host, of: { taken_bytes: taken, memory_bytes: all, num_replicas: number } }) {
  return html`
    <${Gauge}
      label=${label}
      used=${taken}
      max=${all}
      shown=${bytes}
      hint="${plural(number, "replica")}${host.is_alive ? "" : ", as the agent left them"}"
      warn=${0.9}
      bad=${1.01}
    />
  `;
}

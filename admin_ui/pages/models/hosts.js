// The machines on which agents start engines: their memory and accelerators, and what is taken of them.

import { Badge } from "../../components/badge.js";
import { Gauge } from "../../components/charts/gauge.js";
import { Empty, Loaded } from "../../components/feedback.js";
import { useAll } from "../../lib/data.js";
import { bytes, plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";

const EVERY_MS = 10_000;

export function Hosts() {
  const hosts = useAll("/hosts", {}, { every: EVERY_MS });
  return html`<${Loaded} from=${hosts} what="load the hosts">
    ${(list) => (list.length === 0
      ? html`<${Empty} icon="system" title="No host yet" command="lorikeet serve">A host appears once an agent has started there; <code>lorikeet serve</code> runs one for its machine.<//>`
      : html`<div class="stack">${list.map((host) => html`<${Host} key=${host.id} host=${host} />`)}</div>`)}
  <//>`;
}

function Host({ host }) {
  const { name, is_alive: isAlive, num_processors: processors, num_replicas: number, gpus } = host;
  const onGpus = gpus.reduce((sum, { num_replicas: each }) => sum + each, 0);
  return html`<article class="engine">
    <header class="engine-head">
      <h3>${name}</h3>
      <${Badge} dot tone=${isAlive ? "good" : "bad"}>${isAlive ? "agent runs" : "no agent"}<//>
      <span class="faint">${[plural(processors, "processor"), gpus.length && plural(gpus.length, "GPU"), plural(number, "replica")].filter(Boolean).join(" · ")}</span>
    </header>
    <div class="engine-gauges">
      <${Memory} label="Memory" host=${host} of=${{ ...host, num_replicas: number - onGpus }} />
      ${gpus.map((gpu, index) => html`<${Memory} key=${index} label=${`GPU ${index}`} host=${host} of=${gpu} />`)}
    </div>
  </article>`;
}

function Memory({ label, host, of: { taken_bytes: taken, memory_bytes: all, num_replicas: number } }) {
  return html`<${Gauge} label=${label} used=${taken} max=${all} shown=${bytes} hint=${`${plural(number, "replica")}${host.is_alive ? "" : ", as the agent left them"}`} warn=${0.9} bad=${1.01} />`;
}

// The engines as they are now: running and waiting requests, the use of cache and slots, and the adapters in these.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty, ErrorBox, Skeleton } from "../../components/feedback.js";
import { Gauge } from "../../components/charts/gauge.js";
import { Section } from "../../components/page.js";
import { colourOf } from "../../lib/colours.js";
import { useApi } from "../../lib/data.js";
import * as format from "../../lib/format/format.js";
import { html, useCallback, useState } from "../../lib/html.js";
import { useLive } from "../../lib/live.js";

const EVERY_MS = 10_000;

/** Return {data, error, ...} of GET /engines, kept up to date by the live stream, whose numbers come without names. */
export function useEngines() {
  const asked = useApi("/engines", {}, { every: EVERY_MS });
  const [live, setLive] = useState(null);
  useLive("engines", useCallback(setLive, []));
  if (!asked.data) return asked;
  const fresh = new Map((live?.data ?? []).map((engine) => [engine.id, engine]));
  const data = asked.data.data.map((engine) => {
    const { resident_adapters: _, tenants: __, ...numbers } = fresh.get(engine.id) ?? {};
    return { ...engine, ...numbers };
  });
  return { ...asked, data: { ...asked.data, data } };
}

export function Engines() {
  const engines = useEngines();
  const missing = engines.error?.isMissing;
  return html`
    <${Section}
      title="Engines"
      actions=${html`<${Button} kind="quiet" small href="/admin/system">
          All of the system
        <//>`}
    >
      ${!missing && html`<${ErrorBox} error=${engines.error} what="load the engines" retry=${engines.reload} />`}
      ${
        engines.data === undefined
          ? missing
            ? html`<${NoEngine} />`
            : !engines.error && html`<${Skeleton} lines=${3} />`
          : engines.data.data.length === 0
            ? html`<${NoEngine} />`
            : (engines.data.data.map((engine) => html`<${Engine} key=${engine.id} engine=${engine} />`))
      }
    <//>
  `;
}

function NoEngine() {
  return html`
    <${Empty} icon="system" title="No engine is known" command="lorikeet engine --help">
      A gateway without an engine refuses requests. <code>lorikeet serve</code> starts one beside the gateway.
    <//>
  `;
}

export function Engine({ engine }) {
  const adapters = engine.resident_adapters ?? [];
  return html`
    <article class="engine">
      <header class="engine-head">
        <h3>${engine.model}</h3>
        <${Badge} dot>${engine.state}<//>
        <span class="faint">
          ${[
            engine.device,
            engine.dtype,
            engine.step_ms_p50 != null && `${format.ms(engine.step_ms_p50)} a step`,
            engine.tokens_per_s != null && `${format.count(engine.tokens_per_s)} tokens/s`,
          ]
            .filter(Boolean)
            .join(" · ")}
        </span>
      </header>
      <div class="engine-gauges">
        <div class="gauge">
          <div class="gauge-head">
            <span>Running</span>
            <span class="num">
              <b>${format.count(engine.num_running)}</b>
            </span>
          </div>
          <div class="gauge-foot">
            ${format.count(engine.num_waiting)} waiting
            ${engine.adapters_waiting ? `, ${engine.adapters_waiting} for an adapter` : ""}
          </div>
        </div>
        <${Gauge}
          label="KV cache"
          used=${engine.kv_blocks_used ?? 0}
          max=${engine.kv_blocks_total ?? 0}
          hint=${
            engine.kv_blocks_total
              ? `${format.percent(engine.kv_blocks_used / engine.kv_blocks_total)} of its blocks`
              : "no blocks"
          }
          warn=${0.9}
          bad=${1.01}
        />
        <${Gauge}
          label="Adapter slots"
          used=${engine.adapter_slots_used ?? 0}
          max=${engine.adapter_slots_total ?? 0}
          warn=${1.01}
          bad=${1.01}
        />
      </div>
      ${
        adapters.length > 0 &&
        html`
          <div class="slots" aria-label="Adapters in slots">
            ${adapters.map((adapter) => html`<${Slot} key=${adapter.digest} adapter=${adapter} />`)}
          </div>
        `
      }
    </article>
  `;
}

function Slot({ adapter: { digest, name, version, project_id: projectId, project_name: project } }) {
  const inside = html`
    <i style=${{ background: colourOf(projectId ?? digest) }}></i>
    <span class="ellipsis">
      ${name ?? digest.slice(0, 10)}
      ${version ? ` v${version}` : ""}
    </span>
  `;
  const title = project ? `${project}: ${name}` : digest;
  return name && projectId
    ? html`
      <a
        class="slot"
        href="/admin/adapters/${encodeURIComponent(projectId)}/${encodeURIComponent(name)}"
        title=${title}
      >
        ${inside}
      </a>
    `
    : html`
      <span class="slot" title=${title}>
        ${inside}
      </span>
    `;
}

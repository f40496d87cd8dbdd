// The page of engines and gateways: where each runs, since when, and how full it is.

import { Badge } from "../../components/badge.js";
import { Code } from "../../components/button.js";
import { Empty, Loaded } from "../../components/feedback.js";
import { Num, Time } from "../../components/numbers.js";
import { Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { Engine, useEngines } from "../overview/engines.js";
import { SystemTabs } from "./tabs.js";

export default function Backends() {
  const engines = useEngines();
  const list = engines.data?.data ?? [];
  const down = list.filter(({ state }) => !["ready", "running", "active"].includes(state));
  const lead =
    engines.data &&
    (down.length
      ? html`<b>${plural(down.length, "engine")}</b> not ready.`
      : `${plural(list.length, "engine")}, all ready.`);
  return html`
    <${Page} title="System" lead=${lead} tabs=${html`<${SystemTabs} />`}>
      <${Loaded}
        from=${engines}
        what="load the engines"
        missing=${html`<${Empty} icon="system" title="This gateway tells nothing about its engines" />`}
      >
        ${(data) => html`
          <${Section} title="Engines">
            ${data.data.map((engine) => html`<${Engine} key=${engine.id} engine=${engine} />`)}
          <//>
          <${Section} title="Tenants at work now" hint="Of each engine: whose sequences run and wait.">
            <${Tenants} engines=${data.data} />
          <//>
          <${Section} title="Gateways">
            <${Gateways} rows=${data.gateways ?? []} />
          <//>
        `}
      <//>
    <//>
  `;
}

function Tenants({ engines }) {
  const rows = engines.flatMap(({ id, model, tenants }) =>
    (tenants ?? []).map((tenant) => ({ key: `${id} ${tenant.project_id}`, model, ...tenant })),
  );
  const columns = [
    { key: "name", title: "Tenant", value: ({ name, project_id: id }) => name ?? id },
    { key: "model", title: "Engine" },
    { key: "num_running", title: "Running", format: "count", total: true },
    { key: "num_waiting", title: "Waiting", format: "count", total: true },
  ];
  return html`
    <${Table}
      name="tenants"
      label="Tenants at work"
      columns=${columns}
      rows=${rows}
      rowKey=${({ key }) => key}
      href=${({ project_id: id }) => `/admin/tenants/${id}`}
      filter=${false}
      empty=${html`<${Empty} icon="tenants" title="No tenant has a request running" />`}
    />
  `;
}

function Gateways({ rows }) {
  const columns = [
    { key: "id", title: "Gateway", render: ({ id }) => html`<${Code} text=${id} what="gateway id" />` },
    { key: "version", title: "Version", render: ({ version }) => html`<${Badge}>${version}<//>` },
    { key: "started_at", title: "Started", format: "time" },
    { key: "last_seen_at", title: "Last seen", render: ({ last_seen_at: at }) => html`<${Time} at=${at} relative />` },
    {
      key: "requests_running",
      title: "Requests running",
      align: "end",
      render: ({ requests_running: number }) => html`<${Num} value=${number} />`,
    },
  ];
  return html`
    <${Table}
      name="gateways"
      label="Gateways"
      columns=${columns}
      rows=${rows}
      filter=${false}
      empty=${html`<${Empty} icon="system" title="No gateway is known" />`}
    />
  `;
}

// The table of an adapter's versions: which one is current, the state of each, and the engines that have it loaded.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi, useList } from "../../lib/data.js";
import { ms } from "../../lib/format/format.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { setQuery, useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { Promote, RollBack } from "./confirm_dialogs.js";
import { Compare } from "./compare.js";
import { pathOf } from "./paths.js";
import { STATES, TONE } from "./states.js";
import { Version } from "./version.js";

const UNSETTLED = ["inspected", "probed"];
const EVERY_MS = 2000;

export function Versions({ adapter }) {
  const { name, project_id: projectId } = adapter;
  const list = useList(`${pathOf(projectId, name)}/versions`);
  const [shown] = useQuery("version");
  const [compared] = useQuery("compare");
  const [promoting, promote] = useState(null);
  const [rolling, roll] = useState(false);
  const mayWrite = can("adapters.write", projectId);
  const waits = list.items?.some(({ state }) => UNSETTLED.includes(state));
  useEffect(() => {
    if (!waits) return undefined;
    const timer = setInterval(list.reload, EVERY_MS);
    return () => clearInterval(timer);
  }, [waits]);
  const columns = [
    { key: "version", title: "Version", render: (row) => html`v${row.version}`, csv: true },
    {
      key: "state",
      title: "State",
      render: (row) => html`
        <span class="row">
          <${Badge} dot tone=${TONE[row.state]}>
            ${row.state}
          <//>
          ${row.current && html`<${Badge} tone="info">current<//>`}
        </span>
      `,
    },
    { key: "rank", title: "Rank", format: "count" },
    { key: "size_bytes", title: "Size", format: "bytes" },
    { key: "source", title: "From" },
    { key: "created_at", title: "Added", format: "time" },
    {
      key: "promote",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      render: (row) =>
        mayWrite &&
        row.state === "ready" &&
        !row.current &&
        html`
          <${Button} small onClick=${() => promote(row)}>
            Promote
          <//>
        `,
    },
  ];
  const ready = (list.items ?? []).filter(({ state }) => state !== "rejected");
  const actions = html`
    ${
      ready.length > 1 &&
      html`
        <${Button}
          small
          onClick=${() => setQuery({ compare: `${ready[1].version}..${ready[0].version}` }, { push: true })}
        >
          Compare
        <//>
      `
    }
    ${
      mayWrite &&
      adapter.previous_version !== null &&
      html`
        <${Button} small icon="left" onClick=${() => roll(true)}>
          Roll back to v${adapter.previous_version}
        <//>
      `
    }
  `;
  return html`
    <${Section} title="Versions" actions=${actions}>
      <${Table}
        label="Versions"
        columns=${columns}
        rows=${list.items}
        rowKey=${({ version }) => version}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        what="load the versions"
        filter=${false}
        href=${({ version }) => `?version=${version}`}
      />
      <ul class="steps" aria-label="States of a version">
        ${STATES.slice(0, 4).map(
          ([state, text]) => html`
            <li key=${state} title=${text}>
              <${Badge} tone=${TONE[state]}>${state}<//>
              ${text}
            </li>
          `,
        )}
      </ul>
    <//>
    ${can("organization.read") && html`<${Loaded} adapter=${adapter} />`}
    ${shown && html`<${Version} adapter=${adapter} version=${shown} onClose=${() => setQuery({ version: null })} />`}
    ${
      compared &&
      html`
        <${Compare}
          adapter=${adapter}
          versions=${list.items ?? []}
          compared=${compared}
          onClose=${() => setQuery({ compare: null })}
        />
      `
    }
    ${promoting && html`<${Promote} adapter=${adapter} version=${promoting.version} onClose=${() => promote(null)} />`}
    ${rolling && html`<${RollBack} adapter=${adapter} onClose=${() => roll(false)} />`}
  `;
}

function Loaded({ adapter }) {
  const engines = useApi("/engines", {}, { every: 10_000 });
  if (!engines.data) return null;
  const rows = engines.data.data.map((engine) => ({
    ...engine,
    version: engine.resident_adapters.find(({ adapter_id: id }) => id === adapter.id)?.version,
  }));
  const columns = [
    { key: "model", title: "Engine" },
    { key: "state", title: "State", render: ({ state }) => html`<${Badge} dot>${state}<//>` },
    {
      key: "version",
      title: "Version on the device",
      render: ({ version }) =>
        version
          ? html`<${Badge} tone="info">v${version}<//>`
          : html`<span class="faint">${adapter.pinned ? "to be loaded: it is pinned" : "loaded when asked for"}</span>`,
    },
    {
      key: "adapter_slots_used",
      title: "Slots in use",
      align: "end",
      render: (row) => html`
        <span class="num">
          ${row.adapter_slots_used} of ${row.adapter_slots_total}
        </span>
      `,
    },
    {
      key: "step_ms_p50",
      title: "A step, p50",
      align: "end",
      render: (row) => html`<span class="num">${ms(row.step_ms_p50)}</span>`,
    },
  ];
  return html`
    <${Section} title="Where it is loaded" hint="Content that several versions share counts as the latest of them.">
      <${Table}
        name="engines"
        label="Where it is loaded"
        columns=${columns}
        rows=${rows}
        rowKey=${({ id, model }) => id || model}
        href=${() => "/admin/system"}
        filter=${false}
      />
    <//>
  `;
}

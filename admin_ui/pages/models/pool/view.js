// The parts of a pool's page: the change under way, replicas, revisions, and who may use it.

import { Badge } from "../../../components/badge.js";
import { Num, Time } from "../../../components/numbers.js";
import { Facts, Section } from "../../../components/page.js";
import { Table } from "../../../components/table.js";
import { html } from "../../../lib/html.js";
import { useProjectNames } from "../../../lib/projects.js";
import { can, useSession } from "../../../lib/session.js";
import { InMotion } from "../motion.js";
import { Placement } from "../placement.js";
import { Replicas } from "../replicas.js";
import { ByTheLoad } from "../scaling.js";
import { isForeign, kindOf, whoseKeys } from "../servers/words.js";
import { startedOf } from "../started.js";
import { memoryOf, replicas, settingsOf, whoMayUse } from "../words.js";

export function View({ pool, ask }) {
  const names = useProjectNames();
  const own = useSession().who.organization;
  const serving = pool.revisions.find(({ revision }) => revision === pool.revision) ?? pool;
  return html`
    ${
      pool.revision !== pool.wanted_revision &&
      html`
        <${InMotion} pool=${pool} onCancel=${can("pools.write") && pool.revision !== null && (() => ask("cancel"))} />
      `
    }
    <${Section}
      title="Replicas"
      hint="${replicas(pool.num_wanted)} wanted${memoryOf(pool.replica_bytes, pool.num_replicas) && `: ${memoryOf(pool.replica_bytes, pool.num_replicas)}`}."
    >
      <${Replicas} pool=${pool} />
    <//>
    ${
      pool.is_managed &&
      html`
        <${ByTheLoad} pool=${pool} />
        <${Placement} pool=${pool} />
      `
    }
    <div class="grid-2">
      <${Section} title="What it serves" card>
        <${Facts}
          rows=${[
            ["Model", serving.model ? html`<code>${serving.model}</code>` : "known to its servers alone"],
            ...(isForeign(pool)
              ? [
                  ["Servers", html`${kindOf(pool)} at ${pool.urls.join(", ")}`],
                  ["Their key", pool.key_hint === null ? "none" : html`<code>…${pool.key_hint}</code>`],
                  ["Requests are sent with", whoseKeys(serving)],
                ]
              : [["Engine", startedOf(pool).title]]),
            [
              isForeign(pool) ? "Settings" : "Engine settings",
              settingsOf(serving)
                ? html`<code>${settingsOf(serving)}</code>`
                : isForeign(pool)
                  ? "none of its own"
                  : "as on the hosts",
            ],
            ["Memory a replica", html`<${Num} value=${serving.replica_bytes} kind="bytes" />`],
            ["Adapters of its base", html`<${Num} value=${pool.num_adapters} />`],
            ["Used by", whoMayUse(pool, names, own)],
            ["Created", html`<${Time} at=${pool.created_at} />`],
          ]}
        />
      <//>
      <${Section}
        title="Revisions"
        hint="A change of model or settings is a new revision; the latest twenty are shown."
      >
        <${Revisions} pool=${pool} />
      <//>
    </div>
  `;
}

function Revisions({ pool }) {
  const stateOf = ({ revision, state }) => (revision === pool.revision ? "serves" : state);
  const columns = [
    { key: "revision", title: "Revision", align: "end" },
    {
      key: "state",
      title: "State",
      value: stateOf,
      render: (row) => html`
        <span>
          <${Badge} dot tone=${row.revision === pool.revision ? "good" : undefined}>
            ${stateOf(row)}
          <//>
          ${
            row.why &&
            html`
              <br />
              <small class="faint">${row.why}</small>
            `
          }
        </span>
      `,
    },
    {
      key: "model",
      title: "Model",
      render: (row) => html`
        <span>
          <code>${row.model}</code>
          ${
            settingsOf(row) &&
            html`
              <br />
              <small class="faint">${settingsOf(row)}</small>
            `
          }
        </span>
      `,
    },
    { key: "created_at", title: "Made", render: ({ created_at: at }) => html`<${Time} at=${at} relative />` },
  ];
  return html`
    <${Table}
      name="revisions"
      label="Revisions"
      columns=${columns}
      rows=${pool.revisions}
      rowKey=${({ revision }) => revision}
      filter=${false}
    />
  `;
}

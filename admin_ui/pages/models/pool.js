// One pool: how it is, the change that is under way, its replicas and revisions, and who may use it.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty, Loaded } from "../../components/feedback.js";
import { Icon } from "../../components/icons.js";
import { Menu } from "../../components/menu.js";
import { Num, Time } from "../../components/numbers.js";
import { Facts, Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { useProjectNames } from "../../lib/projects.js";
import { can, useSession } from "../../lib/session.js";
import { SetAccess } from "./access.js";
import { CancelChange, DrainPool, RemovePool } from "./acts.js";
import { LoadAdapters } from "./adapters.js";
import { ScalePool, UpdatePool } from "./change.js";
import { InMotion } from "./motion.js";
import { Placement, PlacePool } from "./placement.js";
import { Replicas } from "./replicas.js";
import { ByTheLoad, FollowLoad, StopFollowing } from "./scaling.js";
import { ChangeServers, RemoveServerKey, SetServerKey, isForeign, kindOf, whoseKeys } from "./servers.js";
import { startedOf, takesAdaptersAtStart } from "./started.js";
import { isMoving, memoryOf, pathOf, replicas, settingsOf, whoMayUse } from "./words.js";

const EVERY_MS = 10_000;
const WHILE_MOVING_MS = 2_000;
const CRUMBS = [["Models", "/admin/models"]];
const DIALOGS = {
  servers: ChangeServers,
  key: SetServerKey,
  keyless: RemoveServerKey,
  scale: ScalePool,
  follow: FollowLoad,
  unfollow: StopFollowing,
  place: PlacePool,
  update: UpdatePool,
  adapters: LoadAdapters,
  access: SetAccess,
  drain: DrainPool,
  cancel: CancelChange,
  remove: RemovePool,
};

export default function Pool({ params: { pool: id } }) {
  const [every, setEvery] = useState(EVERY_MS);
  const pool = useApi(pathOf(id), {}, { every });
  const [asking, ask] = useState(null);
  const wanted = pool.data && isMoving(pool.data) ? WHILE_MOVING_MS : EVERY_MS;
  if (wanted !== every) setEvery(wanted);
  if (pool.error?.isMissing) {
    return html`
      <${Page} title="Pool" crumbs=${CRUMBS}>
        <${Empty}
          icon="models"
          title="There is no pool with this id"
          action=${html`<${Button} href="/admin/models">All models<//>`}
        >
          It may have been removed.
        <//>
      <//>
    `;
  }
  const Asked = DIALOGS[asking];
  return html`
    <${Page}
      title=${pool.data?.name ?? "Pool"}
      crumbs=${CRUMBS}
      lead=${pool.data && html`<${Lead} pool=${pool.data} />`}
      actions=${pool.data && can("pools.write") && html`<${Actions} pool=${pool.data} ask=${ask} />`}
    >
      <${Loaded} from=${pool} what="load the pool">
        ${(data) => html`<${View} pool=${data} ask=${ask} />`}
      <//>
      ${Asked && pool.data && html`<${Asked} pool=${pool.data} onClose=${() => ask(null)} />`}
    <//>
  `;
}

function Lead({ pool: { state, why, num_ready: ready, revision, wanted_revision: wanted } }) {
  const answers = ready
    ? html`<b>${replicas(ready)}</b> of revision ${revision ?? "none"} answer${ready === 1 ? "s" : ""} requests.`
    : html`<b>Nobody answers</b> requests for it.`;
  return html`<${Badge} dot>${state}<//> ${answers} ${revision === wanted && why}`;
}

function Actions({ pool, ask }) {
  const isStill = (pool.num_replicas === 0 || pool.state === "failed") && pool.replicas.length === 0;
  const items = [
    ...(isForeign(pool)
      ? ofServers(pool, ask)
      : [{ title: "Change model or settings", icon: "refresh", onClick: () => ask("update") }]),
    ...(takesAdaptersAtStart(pool)
      ? [
          {
            title: "Load waiting adapters",
            hint: "starts the servers anew with all",
            icon: "adapters",
            onClick: () => ask("adapters"),
          },
        ]
      : []),
    ...(pool.is_managed ? placing(pool, ask) : []),
    { title: "Change who may use it", icon: "tenants", onClick: () => ask("access") },
    null,
    isStill
      ? { title: "Remove", icon: "trash", danger: true, onClick: () => ask("remove") }
      : {
          title: "Drain",
          hint: "stop all replicas; needed before removing",
          icon: "pause",
          danger: true,
          onClick: () => ask("drain"),
        },
  ];
  return html`
    ${
      !isForeign(pool) &&
      html`
        <${Button} kind="primary" icon="adapters" onClick=${() => ask("scale")}>
          Scale
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

const placing = (pool, ask) => [
  {
    title: pool.scaling ? "Change the bounds of its load" : "Follow the load",
    hint: "replicas come and go between two bounds",
    icon: "chart",
    onClick: () => ask("follow"),
  },
  ...(pool.scaling
    ? [
        {
          title: "Follow the load no more",
          hint: "the number stays as it is",
          icon: "pause",
          onClick: () => ask("unfollow"),
        },
      ]
    : []),
  { title: "Choose hosts by labels", icon: "system", onClick: () => ask("place") },
];

const ofServers = (pool, ask) => [
  { title: "Change servers or settings", icon: "refresh", onClick: () => ask("servers") },
  {
    title: pool.key_hint === null ? "Set the servers' key" : "Replace the servers' key",
    icon: "keys",
    onClick: () => ask("key"),
  },
  ...(pool.key_hint === null
    ? []
    : [{ title: "Remove the servers' key", icon: "trash", danger: true, onClick: () => ask("keyless") }]),
];

function View({ pool, ask }) {
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

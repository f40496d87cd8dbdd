// The menu of a pool's actions, and the dialog of each.

import { Button } from "../../../components/button.js";
import { Icon } from "../../../components/icons.js";
import { Menu } from "../../../components/menu.js";
import { html } from "../../../lib/html.js";
import { SetAccess } from "../access.js";
import { CancelChange, DrainPool, RemovePool } from "../confirm_dialogs.js";
import { LoadAdapters } from "../adapters.js";
import { ScalePool, UpdatePool } from "../change.js";
import { PlacePool } from "../placement.js";
import { FollowLoad, StopFollowing } from "../scaling.js";
import { ChangeServers } from "../servers/change.js";
import { RemoveServerKey, SetServerKey } from "../servers/key.js";
import { isForeign } from "../servers/words.js";
import { takesAdaptersAtStart } from "../started.js";

export const DIALOGS = {
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

export function Actions({ pool, ask }) {
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

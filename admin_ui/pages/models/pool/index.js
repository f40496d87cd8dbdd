// The page of one pool: its condition, the change that is under way, its replicas and revisions, and its users.

import { Badge } from "../../../components/badge.js";
import { Button } from "../../../components/button.js";
import { Empty, Loaded } from "../../../components/feedback.js";
import { Page } from "../../../components/page.js";
import { useApi } from "../../../lib/data.js";
import { html, useState } from "../../../lib/html.js";
import { can } from "../../../lib/session.js";
import { isMoving, pathOf, replicas } from "../words.js";
import { Actions, DIALOGS } from "./actions.js";
import { View } from "./view.js";

const EVERY_MS = 10_000;

const WHILE_MOVING_MS = 2_000;

const CRUMBS = [["Models", "/admin/models"]];

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

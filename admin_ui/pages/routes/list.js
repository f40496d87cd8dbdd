// The list of a tenant's routes: names of models behind which a routing policy stands.

import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Table } from "../../components/table.js";
import { useList } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { to } from "../../lib/router.js";
import { Tenant } from "../tenants/frame.js";
import { COLUMNS } from "./columns.js";
import { NewRoute } from "./edit.js";
import { ofTenant } from "./owners.js";
import { SharedWith } from "./shared.js";

export default function Routes({ params }) {
  const id = params.project;
  const list = useList(pathOf(id, "/routes"), {}, { limit: 100 });
  const [isMaking, make] = useState(false);
  const button = (may) =>
    may("routes.write") &&
    html`
      <${Button} kind="primary" icon="plus" onClick=${() => make(true)}>
        New route
      <//>
    `;
  return html`
    <${Tenant}
      params=${params}
      lead=${
        list.items &&
        html`
          <b>${plural(list.items.length, "route")}</b>, each a model id of its own that leads to one of several
          models.
        `
      }
      actions=${(_, may) => button(may)}
    >
      ${(_project, may) => html`
        <${Table}
          name="routes"
          label="Routes"
          columns=${COLUMNS}
          rows=${list.items}
          href=${({ name }) => to("tenants", id, "routes", name)}
          error=${list.error}
          reload=${list.reload}
          loading=${list.loading}
          hasMore=${list.hasMore}
          more=${list.more}
          empty=${html`<${Empty} icon="models" title="No route yet" action=${button(may)} command=${command(id)}>
              A route falls back to another model when one is down, shares requests out by weight, or picks a model
              by what a request is like.
            <//>`}
        />
        ${isMaking && html`<${NewRoute} owner=${ofTenant(id)} onClose=${() => make(false)} />`}
        <${SharedWith} projectId=${id} />
      `}
    <//>
  `;
}

function command(id) {
  return `curl ${window.location.origin}/v1/organization${pathOf(id, "/routes")} \\
  -H "Authorization: Bearer $LORIKEET_ADMIN_KEY" -H "Content-Type: application/json" \\
  -d '{"name": "support", "document": {"root": {"fallback": {"nodes": [{"target": "large"}, {"target": "small"}]}}}}'`;
}

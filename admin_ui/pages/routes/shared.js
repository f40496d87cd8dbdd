// The operator's routes for all tenants: on the page of models, and as a tenant finds them.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useAll, useList } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { can } from "../../lib/session.js";
import { COLUMNS } from "./columns.js";
import { NewRoute } from "./edit.js";
import { OF_ALL } from "./owners.js";

export function RoutesForAll() {
  const list = useList(OF_ALL.base, {}, { limit: 100 });
  const [isMaking, make] = useState(false);
  const button =
    can("routes.write") &&
    html`
      <${Button} icon="plus" onClick=${() => make(true)}>
        New route
      <//>
    `;
  return html`
    <${Section}
      title="Routes for all tenants"
      hint="Models by whose name each tenant's requests go to one of several others."
      actions=${button}
    >
      <${Table}
        name="shared-routes"
        label="Routes for all tenants"
        columns=${COLUMNS}
        rows=${list.items}
        rowKey=${({ id }) => id}
        href=${({ name }) => OF_ALL.href(name)}
        error=${list.error}
        reload=${list.reload}
        loading=${list.loading}
        hasMore=${list.hasMore}
        more=${list.more}
        what="load the routes"
        filter=${false}
        empty=${html`<${Empty}
            icon="models"
            title="No route for all tenants yet"
            command="lorikeet route create NAME policy.json --all-tenants"
          >
            A route falls back to another model when one is down, or picks one by what a request is like.
          <//>`}
      />
      ${isMaking && html`<${NewRoute} owner=${OF_ALL} onClose=${() => make(false)} />`}
    <//>
  `;
}

/** The shared routes as a tenant sees them; nothing if there are none. */
export function SharedWith({ projectId }) {
  const { data: routes = [] } = useAll(pathOf(projectId, "/shared_routes"));
  const columns = [
    { key: "name", title: "Route", render: ({ name }) => html`<code>${name}</code>` },
    {
      key: "version",
      title: "Version",
      align: "end",
      render: ({ version }) => html`<${Badge} tone="info">v${version}<//>`,
    },
    {
      key: "is_hidden",
      title: "Answers here",
      value: ({ is_hidden: hidden }) => (hidden ? "no: the tenant has a name of its own like it" : "yes"),
    },
  ];
  return (
    routes.length > 0 &&
    html`
      <${Section}
        title="Routes of the operator"
        hint="They answer in every tenant that has no name of its own like theirs."
      >
        <${Table}
          name="shared-with"
          label="Routes of the operator"
          columns=${columns}
          rows=${routes}
          rowKey=${({ id }) => id}
          filter=${false}
        />
      <//>
    `
  );
}

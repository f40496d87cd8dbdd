// The page of one route: its policy as a tree, its versions, and the plan for a described request.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty, Loaded } from "../../components/feedback.js";
import { Page, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate, useApi, useList } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { useProjectNames } from "../../lib/projects.js";
import { mayIn, pathOf } from "../../lib/projects_api.js";
import { navigate, to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { EditRoute } from "./edit.js";
import { Explain } from "./explain.js";
import { OF_ALL, ofTenant } from "./owners.js";
import { Tree } from "./tree.js";

/** A route of a tenant or, without one in the path, of the operator for all tenants. */
export default function Route({ params: { project: id, name } }) {
  const owner = id === undefined ? OF_ALL : ofTenant(id);
  const { base } = owner;
  const path = `${base}/${encodeURIComponent(name)}`;
  const route = useApi(path);
  const project = useApi(id === undefined ? null : pathOf(id));
  const names = useProjectNames();
  const [asking, ask] = useState(null);
  const [told, tell] = useState(null);
  const close = () => ask(null);
  const may = id === undefined ? can : mayIn(id, project.data);
  const crumbs =
    id === undefined
      ? [["Models", "/admin/models"]]
      : [
          ["Tenants", "/admin/tenants"],
          [names(id), to("tenants", id)],
          ["Routes", owner.list],
        ];
  if (route.error?.isMissing) {
    return html`
      <${Page} title=${name} crumbs=${crumbs}>
        <${Empty}
          icon="models"
          title="There is no route of this name"
          action=${html`<${Button} href=${owner.list}>All routes<//>`}
        >
          It may have been deleted.
        <//>
      <//>
    `;
  }
  const actions =
    may("routes.write") &&
    html`
      <${Button} kind="primary" onClick=${() => ask({ edit: true })}>
        Change
      <//>
      <${Button} icon="trash" label="Delete ${name}" onClick=${() => ask({ remove: true })} />
    `;
  return html`
    <${Page}
      title=${name}
      crumbs=${crumbs}
      lead=${
        route.data &&
        html`<${Badge} tone="info">v${route.data.version}<//> answers requests for the model <code>${name}</code>.`
      }
      actions=${route.data && actions}
    >
      <${Loaded} from=${route} what="load the route">
        ${(data) => html`
          <${Section} title="Policy" card>
            <${Tree} document=${data.document} taken=${told?.version === data.version ? pathsOf(told) : undefined} />
          <//>
          <${Explain} projectId=${id} route=${data} told=${told} tell=${tell} />
          <${Versions} path=${path} route=${data} may=${may} ask=${ask} />
          ${asking?.edit && html`<${EditRoute} owner=${owner} route=${data} onClose=${close} />`}
          ${
            asking?.show &&
            html`
              <${Dialog} title="Version ${asking.show.version} of ${name}" onClose=${close} wide>
                <${Tree} document=${asking.show.document} />
              <//>
            `
          }
          ${
            asking?.back &&
            html`
              <${Confirm}
                title="Let version ${asking.back.version} answer again?"
                verb="Roll back"
                onClose=${close}
                act=${async () => {
                  await post(`${path}/rollback`, { version: asking.back.version });
                  invalidate(base);
                  toast(`Version ${asking.back.version} of ${name} answers`);
                }}
              >
                <p>
                  It answers as it was. Targets that are gone since are passed over. Version ${data.version} stays in
                  the list.
                </p>
              <//>
            `
          }
          ${
            asking?.remove &&
            html`
              <${Confirm}
                title="Delete the route ${name}?"
                verb="Delete the route"
                onClose=${close}
                act=${async () => {
                  await del(path);
                  navigate(owner.list);
                  invalidate(base);
                  toast(`The route ${name} is deleted`);
                }}
              >
                <p>
                  Programs that call <code>${name}</code> are refused with “model not found”. All its versions go.
                </p>
              <//>
            `
          }
        `}
      <//>
    <//>
  `;
}

const pathsOf = ({ steps }) => new Set(steps.slice(0, 1).map(({ path }) => path));

function Versions({ path, route, may, ask }) {
  const list = useList(`${path}/versions`, {}, { limit: 100 });
  const answers = ({ version }) => version === route.version;
  const columns = [
    {
      key: "version",
      title: "Version",
      render: (row) => html`
        <${Badge} tone=${answers(row) ? "good" : "info"}>v${row.version}<//>${" "}
        ${answers(row) && html`<span class="faint">answers</span>`}
      `,
    },
    { key: "created_at", title: "Made", format: "time" },
    {
      key: "act",
      title: "",
      sort: false,
      csv: false,
      class: "shrink",
      render: (row) => html`
        <span class="row">
          <${Button} small label="Show version ${row.version}" onClick=${() => ask({ show: row })}>
            Show
          <//>
          ${
            may("routes.write") &&
            !answers(row) &&
            html`
              <${Button} small label="Roll back to version ${row.version}" onClick=${() => ask({ back: row })}>
                Roll back
              <//>
            `
          }
        </span>
      `,
    },
  ];
  return html`
    <${Section} title="Versions" hint="Each change is a version. The last hundred are kept.">
      <${Table}
        name="route-versions"
        label="Versions"
        columns=${columns}
        rows=${list.items}
        rowKey=${({ version }) => version}
        error=${list.error}
        reload=${list.reload}
        hasMore=${list.hasMore}
        more=${list.more}
        what="load the versions"
        filter=${false}
      />
    <//>
  `;
}

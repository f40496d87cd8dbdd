// The page of models: for operators the pools and their hosts, for a tenant's people the base models that they may use.

import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Page, Section } from "../../components/page.js";
import { html } from "../../lib/html.js";
import { useProjectId, useProjectNames } from "../../lib/projects.js";
import { useShortcut } from "../../lib/rules/keys.js";
import { setQuery, useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { RoutesForAll } from "../routes/shared.js";
import { NewPool } from "./create.js";
import { Hosts } from "./hosts.js";
import { Bases } from "./own.js";
import { Pools, PoolsLead, usePools } from "./pools.js";
import { ConnectServers } from "./servers/connect.js";

export default function Models() {
  const projectId = useProjectId();
  return can("pools.read")
    ? html`<${OperatorsModels} projectId=${projectId} />`
    : html`<${OwnModels} projectId=${projectId} />`;
}

function OperatorsModels({ projectId }) {
  const pools = usePools();
  const names = useProjectNames();
  const [making] = useQuery("new");
  const mayWrite = can("pools.write");
  const open = () => setQuery({ new: 1 }, { push: true });
  useShortcut("n", "New pool", () => mayWrite && open());
  const connect = () => setQuery({ new: "servers" }, { push: true });
  const Making = making === "servers" ? ConnectServers : NewPool;
  const add =
    mayWrite &&
    html`
      <${Button} onClick=${connect}>Connect servers<//>
      <${Button} kind="primary" icon="plus" onClick=${open}>
        New pool
      <//>
    `;
  return html`
    <${Page} title="Models" lead=${pools.data && html`<${PoolsLead} pools=${pools.data} />`} actions=${add}>
      <${Pools} pools=${pools} action=${add} />
      ${
        projectId &&
        html`
          <${Section} title="What ${names(projectId)} may use">
            <${Bases} projectId=${projectId} />
          <//>
        `
      }
      ${can("routes.read") && html`<${RoutesForAll} />`}
      <${Section}
        title="Hosts"
        hint="Machines on which an agent starts engines. What replicas take is estimated when a model is prepared."
      >
        <${Hosts} />
      <//>
      ${making && mayWrite && html`<${Making} onClose=${() => setQuery({ new: null })} />`}
    <//>
  `;
}

function OwnModels({ projectId }) {
  return html`
    <${Page} title="Models" lead="The base models that your requests and adapters can use.">
      ${
        projectId
          ? html`<${Bases} projectId=${projectId} />`
          : html`
            <${Empty} icon="models" title="Choose a tenant">
              The models that may be used depend on the tenant.
            <//>
          `
      }
    <//>
  `;
}

// Parts that several views of experiments share: the tabs of a tenant, the placeholder while no tenant is chosen, and
// the mark of the control.

import { Badge } from "../../components/badge.js";
import { Empty } from "../../components/feedback.js";
import { Select } from "../../components/form.js";
import { Page } from "../../components/page.js";
import { Tabs } from "../../components/tabs.js";
import { html } from "../../lib/html.js";
import { lookAt, useProjects } from "../../lib/projects.js";

export function ExperimentTabs({ projectId }) {
  const of = (path) => `/admin/experiments${path}?project=${encodeURIComponent(projectId)}`;
  return html`
    <${Tabs}
      label="Views of experiments"
      tabs=${[
        ["Experiments", of("")],
        ["Metrics of feedback", of("/metrics")],
        ["Layers, holdouts, units", of("/units")],
      ]}
    />
  `;
}

/** The badge "control" behind the first arm's name, unless that is its name. */
export const IsControl = ({ name, place }) => place === 0 && name !== "control" && html`<${Badge}>control<//>`;

export function ChooseTenant() {
  const projects = (useProjects() ?? []).filter(({ status }) => status !== "archived");
  const choice = html`
    <${Select}
      label="Tenant"
      value=""
      onValue=${(id) => id && lookAt(id)}
      options=${[["", "Choose a tenant"], ...projects.map(({ id, name }) => [id, name])]}
    />
  `;
  return html`
    <${Page} title="Experiments" lead="A tenant compares its adapters on its own traffic.">
      <${Empty} icon="experiments" title="Whose experiments?" action=${choice}>
        Each tenant has its own, and sees nobody else's.
      <//>
    <//>
  `;
}

// The page of what a tenant's experiments share: layers, holdouts, and the form that forgets a unit.

import { Page } from "../../../components/page.js";
import { html, useState } from "../../../lib/html.js";
import { useProjectId } from "../../../lib/projects.js";
import { can } from "../../../lib/session.js";
import { ChooseTenant, ExperimentTabs } from "../tabs.js";
import { Forget } from "./forget.js";
import { Holdouts, NewHoldout } from "./holdouts.js";
import { Layers, NewLayer } from "./layers.js";
import { Remove } from "./remove.js";

export default function Units() {
  const projectId = useProjectId();
  const [asking, ask] = useState(null);
  if (!projectId) return html`<${ChooseTenant} />`;
  const mayWrite = can("experiments.write", projectId);
  const shared = { projectId, mayWrite, ask };
  return html`
    <${Page}
      title="Experiments"
      tabs=${html`<${ExperimentTabs} projectId=${projectId} />`}
      lead="Units are known by a keyed digest alone, never by their names."
    >
      <${Layers} ...${shared} />
      <${Holdouts} ...${shared} />
      ${mayWrite && html`<${Forget} projectId=${projectId} />`}
      ${asking?.layer && html`<${NewLayer} projectId=${projectId} onClose=${() => ask(null)} />`}
      ${asking?.holdout && html`<${NewHoldout} projectId=${projectId} onClose=${() => ask(null)} />`}
      ${asking?.remove && html`<${Remove} projectId=${projectId} ...${asking.remove} onClose=${() => ask(null)} />`}
    <//>
  `;
}

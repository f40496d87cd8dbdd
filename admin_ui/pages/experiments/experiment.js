// The page of one experiment: its results, its health, its set-up, and how programs call it.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty, Loaded, Notice } from "../../components/feedback.js";
import { Icon } from "../../components/icons.js";
import { Menu } from "../../components/menu.js";
import { Page } from "../../components/page.js";
import { Tabs } from "../../components/tabs.js";
import { useAll, useApi } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useCallback, useState } from "../../lib/html.js";
import { useWhileTraffic } from "../../lib/live.js";
import { pathOf } from "../../lib/projects_api.js";
import { to, useLocation } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { Archive, Decide, DeleteDraft, Pause, Start, Stop } from "./confirm_dialogs.js";
import { AddGuardrail, EndArm, SetCoverage, SetShadowShare, SetWeights } from "./changes.js";
import { Calls } from "./calls.js";
import { Health } from "./health.js";
import { experimentPath } from "./paths.js";
import { DurationEstimate } from "./form/duration_estimate.js";
import { Results } from "./results/index.js";
import { SetUp } from "./set_up/index.js";
import { Warnings } from "./warnings.js";
import { hasResults, isOpen, spanInWords, stateInWords } from "./words.js";

const EVERY_MS = 10_000;
const ACTS = { start: Start, pause: Pause, stop: Stop, decide: Decide, archive: Archive, remove: DeleteDraft };
/** Dialogs that change what they show; each gets the experiment as it was when the dialog was opened. */
const CHANGES = {
  coverage: SetCoverage,
  weights: SetWeights,
  shadow: SetShadowShare,
  end: EndArm,
  guardrail: AddGuardrail,
};

export default function Experiment({ params: { project, experiment: id } }) {
  const experiment = useApi(experimentPath(project, id), {}, { every: EVERY_MS });
  const isStarted = !!experiment.data && hasResults(experiment.data);
  const results = useApi(isStarted ? experimentPath(project, id, "/results") : null, {}, { every: EVERY_MS });
  useWhileTraffic(useCallback(results.reload, [results.reload]));
  const [asking, setAsking] = useState({});
  const crumbs = [["Experiments", `/admin/experiments?project=${encodeURIComponent(project)}`]];
  const { data } = experiment;
  if (experiment.error?.isMissing) {
    return html`
      <${Page} title="Experiment" crumbs=${crumbs}>
        <${Empty}
          icon="experiments"
          title="There is no experiment with this id"
          action=${html`<${Button} href=${crumbs[0][1]}>All experiments<//>`}
        >
          It may have been deleted while it was a draft, or it is another tenant's.
        <//>
      <//>
    `;
  }
  const ask = (what) => setAsking({ what, since: data });
  const Asked = ACTS[asking.what] ?? CHANGES[asking.what];
  const asked = asking.what in CHANGES ? asking.since : data;
  return html`
    <${Page}
      title=${data?.name ?? "Experiment"}
      crumbs=${crumbs}
      lead=${data && html`<${Lead} experiment=${data} look=${results.data} />`}
      tabs=${html`<${Views} projectId=${project} id=${id} />`}
      actions=${
        data &&
        can("experiments.write", project) &&
        html`<${Actions} projectId=${project} experiment=${data} ask=${ask} />`
      }
    >
      <${Loaded} from=${experiment} what="load the experiment">
        ${(shown) => html`
          <${Why} experiment=${shown} />
          <${Warnings} experiment=${shown} />
          <${View} projectId=${project} experiment=${shown} results=${results} ask=${ask} />
        `}
      <//>
      ${
        Asked &&
        data &&
        html`<${Asked} projectId=${project} experiment=${asked} look=${results.data} onClose=${() => setAsking({})} />`
      }
    <//>
  `;
}

function Views({ projectId, id }) {
  const tab = (title, ...view) => [title, to("experiments", projectId, id, ...view)];
  return html`
    <${Tabs}
      label="Views of the experiment"
      tabs=${[tab("Results"), tab("Health", "health"), tab("Set-up", "setup"), tab("How to call it", "calls")]}
    />
  `;
}

function View({ projectId, experiment, results, ask }) {
  const view = useLocation().path.split("/")[5] ?? "";
  const own = useAll(pathOf(projectId, "/feedback_metrics")).data ?? [];
  const shared = { projectId, experiment, own: Object.fromEntries(own.map((metric) => [metric.name, metric])), ask };
  if (view === "setup") return html`<${SetUp} ...${shared} />`;
  if (view === "calls") return html`<${Calls} ...${shared} />`;
  if (!hasResults(experiment)) return html`<${Draft} ...${shared} />`;
  return view === "health" ? html`<${Health} ...${shared} />` : html`<${Results} ...${shared} results=${results} />`;
}

function Lead({ experiment, look }) {
  const { state, decided_arm: decided } = experiment;
  const units = look?.arms.reduce((sum, arm) => sum + arm.units, 0);
  return html`
    <${Badge} dot title=${stateInWords(state)}>
      ${state}
    <//>${" "}
    ${look && html`<b>${plural(units, "unit")}</b> ${spanInWords(experiment)}.${" "}`}
    ${decided ? html`<b>${decided}</b> was chosen.` : stateInWords(state)}
  `;
}

/** Notices of changes that the experiment made by itself, such as a pause. */
function Why({ experiment }) {
  const { state, why, enrolling, next_weights: next } = experiment;
  return html`
    ${
      state === "paused" &&
      why &&
      html`
        <${Notice} tone="warn" title="It paused itself">
          ${why.text} Everybody gets the control until you start it again or stop it.
        <//>
      `
    }
    ${
      isOpen(experiment) &&
      !enrolling &&
      next &&
      html`
        <${Notice} title="Weights are changing">
          For some seconds units that were not seen before get the control; those that have an arm keep it.
        <//>
      `
    }
  `;
}

function Draft({ projectId, experiment, ask }) {
  const mayWrite = can("experiments.write", projectId);
  return html`
    <${Empty}
      icon="experiments"
      title="This is a draft"
      action=${
        mayWrite &&
        html`
          <div class="row">
            <${Button} kind="primary" icon="play" onClick=${() => ask("start")}>
              Start
            <//>
            <${Button} href=${to("experiments", projectId, experiment.id, "edit")}>Change it<//>
          </div>
        `
      }
    >
      Nothing is served under “${experiment.model}” by it yet. Results, with intervals that hold whenever you look,
      come once it runs.
    <//>
    <${DurationEstimate} projectId=${projectId} experiment=${experiment} />
    <${SetUp} projectId=${projectId} experiment=${experiment} />
  `;
}

function Actions({ projectId, experiment, ask }) {
  const { state, possible } = experiment;
  const mayChange = isOpen(experiment) && possible.includes("change");
  const items = [
    ...(state === "draft"
      ? [{ title: "Change the draft", icon: "refresh", href: to("experiments", projectId, experiment.id, "edit") }]
      : []),
    ...(mayChange
      ? [
          { title: "Cover more units", icon: "chart", onClick: () => ask("coverage") },
          { title: "Change weights", icon: "limits", onClick: () => ask("weights") },
          { title: "End an arm", icon: "close", onClick: () => ask("end") },
          { title: "Add a guardrail", icon: "shield", onClick: () => ask("guardrail") },
        ]
      : []),
    ...(possible.includes("archive") ? [{ title: "Archive", icon: "system", onClick: () => ask("archive") }] : []),
    ...(possible.includes("stop")
      ? [null, { title: "Stop for good", icon: "critical", danger: true, onClick: () => ask("stop") }]
      : []),
    ...(possible.includes("delete")
      ? [null, { title: "Delete the draft", icon: "trash", danger: true, onClick: () => ask("remove") }]
      : []),
  ];
  return html`
    ${
      possible.includes("pause") &&
      html`
        <${Button} icon="pause" onClick=${() => ask("pause")}>
          Pause
        <//>
      `
    }
    ${
      possible.includes("start") &&
      html`
        <${Button} kind="primary" icon="play" onClick=${() => ask("start")}>
          ${state === "paused" ? "Go on" : "Start"}
        <//>
      `
    }
    ${
      possible.includes("decide") &&
      html`
        <${Button} kind="primary" icon="check" onClick=${() => ask("decide")}>
          Choose an arm
        <//>
      `
    }
    ${
      items.length > 0 &&
      html`
        <${Menu}
          label="More actions"
          align="end"
          look="button secondary icon-only"
          button=${html`<${Icon} name="more" />`}
          items=${items}
        />
      `
    }
  `;
}

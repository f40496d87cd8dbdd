// A new experiment, or a draft that is changed: what is compared, by what it is decided, and in words what will
// happen.

import { Empty, Loaded } from "../../../components/feedback.js";
import { Button } from "../../../components/button.js";
import { Form, Select, TextField, useForm } from "../../../components/form.js";
import { Page, Section } from "../../../components/page.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate, useAll, useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { navigate, to } from "../../../lib/router.js";
import { can } from "../../../lib/session.js";
import { experimentPath } from "../paths.js";
import { UNIT_SOURCES } from "../words.js";
import { Arms } from "./arms.js";
import { Metrics } from "./metrics.js";
import { firstModels, useArmModels } from "./models.js";
import { effectHint, Plan } from "./plan.js";
import { Shadow } from "./shadow.js";
import { WINDOW_UNITS, definitionOf, fieldOfParam, initialValues, valuesOf, wrongValues } from "./values.js";

const SOURCES = [...UNIT_SOURCES, ["metadata.", "a key of the request's metadata"]];

export default function EditExperiment({ params: { project, experiment: id } }) {
  const draft = useApi(id ? experimentPath(project, id) : null);
  const models = useArmModels(project, draft.data?.model);
  const own = useAll(pathOf(project, "/feedback_metrics"));
  const crumbs = [["Experiments", `/admin/experiments?project=${encodeURIComponent(project)}`], ...(draft.data ? [[draft.data.name, to("experiments", project, id)]] : [])];
  const title = id ? "Change the draft" : "New experiment";
  if (!can("experiments.write", project) || (draft.data && draft.data.state !== "draft")) {
    const why = draft.data ? "It has started: its page has what may still change." : "Your role makes no experiments here.";
    return html`<${Page} title=${title} crumbs=${crumbs}><${Empty} icon="experiments" title="Nothing to fill in" action=${html`<${Button} href=${crumbs.at(-1)[1]}>Back<//>`}>${why}<//><//>`;
  }
  const isThere = !models.isLoading && own.data !== undefined && (!id || draft.data !== undefined);
  return html`<${Page} title=${title} crumbs=${crumbs} lead="Compare what you serve with what you could serve, on your own traffic.">
    ${isThere
      ? html`<${Fields} projectId=${project} draft=${draft.data} models=${models} own=${own.data} />`
      : html`<${Loaded} from=${draft.error ? draft : own} what="load the form">${() => null}<//>`}
  <//>`;
}

function Fields({ projectId, draft, models, own }) {
  const byName = Object.fromEntries(own.map((metric) => [metric.name, metric]));
  const initial = draft ? valuesOf(draft) : initialValues(firstModels(models));
  if (!draft && own.length) initial.primary = [own[0].name];
  const form = useForm(initial, async (values) => {
    const definition = definitionOf(values, byName);
    const made = draft ? await post(experimentPath(projectId, draft.id), { ...definition, version: draft.version }) : await post(pathOf(projectId, "/experiments"), definition);
    invalidate(pathOf(projectId, "/experiments"));
    navigate(to("experiments", projectId, made.id));
    toast(draft ? `${made.name} is changed` : `The draft ${made.name} is saved`);
  }, wrongValues, fieldOfParam);
  const field = (name) => form.bind(name);
  const { values } = form;
  return html`<div class="experiment-form"><${Form} form=${form} verb=${draft ? "Save the draft" : "Save as a draft"} what="save the experiment" onCancel=${() => window.history.back()}>
    <${Section} title="What callers ask for">
      <div class="field-grid">
        <${TextField} ...${field("name")} label="Name" hint="Of the experiment, such as support-tone." autocomplete="off" spellcheck="false" maxlength="64" autofocus />
        <${TextField} ...${field("model")} label="Model string" optional hint="What programs send as “model”. It may be an alias that they send already." placeholder=${values.name || "as the name"} autocomplete="off" spellcheck="false" />
        <${Select} ...${field("unit")} label="Who keeps an arm" hint="Where a request says whose it is." options=${SOURCES} />
        ${values.unit === "metadata." && html`<${TextField} ...${field("key")} label="Key of the metadata" autocomplete="off" spellcheck="false" maxlength="64" />`}
        <${TextField} ...${field("coverage")} label="Part of the units that takes part, %" hint="It can grow later, and never shrinks." inputmode="decimal" autocomplete="off" />
      </div>
    <//>
    <${Arms} form=${form} models=${models} projectId=${projectId} />
    <${Shadow} form=${form} models=${models} projectId=${projectId} />
    <${Metrics} form=${form} own=${own} />
    <${Section} title="How long">
      <div class="field-grid">
        <${TextField} ...${field("effect")} label="Change worth finding, %" hint=${effectHint(values)} inputmode="decimal" autocomplete="off" />
        <${TextField} ...${field("window")} label="A unit's outcomes count for" hint="From its first request. It is in the results afterwards." inputmode="decimal" autocomplete="off" />
        <${Select} ...${field("window_unit")} label="Counted in" hint="Days show whether an effect fades: two at least." options=${WINDOW_UNITS} />
        <${TextField} ...${field("min_days")} label="Days before anything is decided" hint="Whole days since the start; whole weeks have weekends in them, too." inputmode="numeric" autocomplete="off" />
      </div>
      <${More} form=${form} projectId=${projectId} />
    <//>
    <${Plan} projectId=${projectId} values=${values} models=${models} />
  <//></div>`;
}

function More({ form, projectId }) {
  const layers = useAll(pathOf(projectId, "/experiment_layers")).data ?? [];
  const holdouts = useAll(pathOf(projectId, "/holdouts")).data ?? [];
  const names = [...new Set(["default", form.values.layer, ...layers.map(({ name }) => name)])];
  return html`<details open=${["alpha", "tightest_at", "layer", "holdout"].some((name) => form.errors[name])}><summary>Statistics, layer and holdout</summary>
    <div class="field-grid">
      <${TextField} ...${form.bind("alpha")} label="False alarms, %" hint="How often an experiment without any effect may ever say that there is one." inputmode="decimal" autocomplete="off" />
      <${TextField} ...${form.bind("tightest_at")} label="Units that you expect" hint="Intervals are tightest at this number." inputmode="numeric" autocomplete="off" />
      <${Select} ...${form.bind("layer")} label="Layer" hint="Experiments of one layer have no unit in common." options=${names.map((name) => [name, name])} />
      <${Select} ...${form.bind("holdout")} label="Holdout" hint="Its units take part in nothing." options=${[["", "none"], ...holdouts.map(({ name, size }) => [name, `${name}, ${size / 100} %`])]} />
    </div>
  </details>`;
}

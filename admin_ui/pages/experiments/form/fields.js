// All fields of the form of an experiment; fields that few people need are folded away.

import { Notice } from "../../../components/feedback.js";
import { Button } from "../../../components/button.js";
import { Form, Select, TextField, useForm } from "../../../components/form.js";
import { useLeaving } from "../../../components/leaving.js";
import { Section } from "../../../components/page.js";
import { toast } from "../../../components/toast.js";
import { get, post } from "../../../lib/api.js";
import { invalidate, useAll } from "../../../lib/data.js";
import { html, useEffect, useState } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { navigate, to } from "../../../lib/router.js";
import { experimentPath } from "../paths.js";
import { UNIT_SOURCES, coverageShown } from "../words.js";
import { Arms } from "./arms.js";
import { beginning } from "./beginning.js";
import { Metrics } from "./metrics.js";
import { effectHint, Plan } from "./plan.js";
import { fieldInWords, fieldOfParam } from "./places.js";
import { Shadow } from "./shadow.js";
import { isSame, keepUnsent, merged, unsentOf } from "./unsent.js";
import { WINDOW_UNITS, definitionOf } from "./values.js";
import { wrongValues } from "./wrong.js";

const FALSE_ALARMS_HINT =
  "How often an experiment without any effect may ever say that there is one, 0.01 to 20. Guardrails have " +
  "1 % of their own.";
const LAYER_HINT =
  "Experiments of one layer have no unit in common: the parts that take part add up to 100 % at most. Of " +
  "another layer they share units at random.";

const CONFLICT = "draft-changed-elsewhere";
const SOURCES = [...UNIT_SOURCES, ["metadata.", "a key of the request's metadata"]];

/**
 * The fields of an experiment. draft: its present state; undefined for a new experiment. above: the page to return to.
 */
export function Fields({ projectId, draft, models, own, above }) {
  const byName = Object.fromEntries(own.map((metric) => [metric.name, metric]));
  const place = `${projectId} ${draft?.id ?? "new"}`;
  const [kept] = useState(() => unsentOf(place));
  const [loaded, setLoaded] = useState(() => kept?.loaded ?? beginning(draft, models, own));
  const [isBack, setBack] = useState(kept !== undefined);
  const [met, meet] = useState(null);
  const [both, setBoth] = useState(null);
  const newest = met && met.version > (draft?.version ?? 0) ? met : draft;
  const form = useForm(
    kept ? { ...loaded.values, ...kept.values } : loaded.values,
    async (values) => {
      if (isBehind) return void document.getElementById(CONFLICT)?.querySelector("button").focus();
      const definition = definitionOf(values, byName);
      let made;
      try {
        made = draft
          ? await post(experimentPath(projectId, draft.id), { ...definition, version: loaded.version })
          : await post(pathOf(projectId, "/experiments"), definition);
      } catch (error) {
        if (error.param !== "version") throw error;
        return void meet(await get(experimentPath(projectId, draft.id)));
      }
      keepUnsent(place, null);
      leaving.free();
      invalidate(pathOf(projectId, "/experiments"));
      navigate(to("experiments", projectId, made.id));
      toast(draft ? `${made.name} is changed` : `The draft ${made.name} is saved`);
    },
    wrongValues,
    fieldOfParam,
  );
  const { values } = form;
  const isChanged = !isSame(values, loaded.values);
  const isBehind = !!newest && newest.version > loaded.version && isChanged;
  const leaving = useLeaving(isChanged, {
    children: html`<p>What you typed stays in this tab: it is there again when you come back to this form.</p>`,
  });
  useEffect(() => {
    if (!leaving.isFree()) keepUnsent(place, isChanged ? { loaded, values } : null);
  }, [place, isChanged, loaded, values]);
  const begin = (from, typed = from.values) => {
    setLoaded(from);
    form.fill(typed);
    setBack(false);
    setBoth(null);
  };
  useEffect(() => {
    // Nothing was typed yet: the newer one takes its place without a question.
    if (newest && newest.version > loaded.version && !isChanged) begin(beginning(newest));
  }, [newest?.version]);
  const loadNewer = () => {
    const saved = beginning(newest);
    const { values: typed, both: twice } = merged(loaded.values, values, saved.values);
    begin(saved, typed);
    setBoth(twice);
  };
  const startOver = () => begin(beginning(newest, models, own));
  const field = (name) => form.bind(name);
  return html`
    <div class="experiment-form">
      ${
        isBack &&
        isChanged &&
        html`
          <${Notice}
            title="What you typed here is back"
            action=${html`<${Button} small onClick=${startOver}>
                Start over
              <//>`}
          >
            It was not saved when this form was left.
          <//>
        `
      }
      <${Form}
        form=${form}
        verb=${draft ? "Save the draft" : "Save as a draft"}
        what="save the experiment"
        onCancel=${() => navigate(above)}
      >
        <${Section} title="What callers ask for">
          <div class="field-grid">
            <${TextField}
              ...${field("name")}
              label="Name"
              hint="Of the experiment, such as support-tone."
              autocomplete="off"
              spellcheck="false"
              autofocus
            />
            <${TextField}
              ...${field("model")}
              label="Model string"
              optional
              hint="What programs send as “model”. It may be an alias that they send already."
              placeholder=${values.name || "as the name"}
              autocomplete="off"
              spellcheck="false"
            />
            <${Select}
              ...${field("unit")}
              label="Who keeps an arm"
              hint="Where a request says whose it is."
              options=${SOURCES}
            />
            ${
              values.unit === "metadata." &&
              html`
                <${TextField} ...${field("key")} label="Key of the metadata" autocomplete="off" spellcheck="false" />
              `
            }
            <${TextField}
              ...${field("coverage")}
              label="Part of the units that takes part, %"
              hint="The coverage: all others get the control and are not counted. It can grow later, and never shrinks."
              inputmode="decimal"
              autocomplete="off"
            />
          </div>
        <//>
        <${Arms} form=${form} models=${models} projectId=${projectId} />
        <${Shadow} form=${form} models=${models} projectId=${projectId} />
        <${Metrics} form=${form} own=${own} />
        <${Section} title="How long">
          <div class="field-grid">
            <${TextField}
              ...${field("effect")}
              label="Change worth finding, %"
              hint=${effectHint(values)}
              inputmode="decimal"
              autocomplete="off"
            />
            <${TextField}
              ...${field("window")}
              label="A unit's outcomes count for"
              hint="From its first request. It is in the results afterwards."
              inputmode="decimal"
              autocomplete="off"
            />
            <${Select}
              ...${field("window_unit")}
              label="Counted in"
              hint="Two days or more show whether an effect fades."
              options=${WINDOW_UNITS}
            />
            <${TextField}
              ...${field("min_days")}
              label="Days before anything is decided"
              hint="Whole days since the start; whole weeks have weekends in them, too."
              inputmode="numeric"
              autocomplete="off"
            />
          </div>
          <${More} form=${form} projectId=${projectId} />
        <//>
        <${Plan} projectId=${projectId} values=${values} models=${models} />
        ${
          isBehind &&
          html`
            <div id=${CONFLICT} role="alert">
              <${Notice} tone="warn" title="Somebody else changed this draft">
                ${`Version ${newest.version} was saved while you filled in version ${loaded.version}, so this one cannot be saved over it. Load the newer one: what you typed stays, and everything else is as it was saved.`}
                <span class="row conflict-actions">
                  <${Button} kind="primary" small onClick=${loadNewer}>
                    Load it and keep what I typed
                  <//>
                  <${Button} small onClick=${startOver}>
                    Load it and drop what I typed
                  <//>
                </span>
              <//>
            </div>
          `
        }
        ${
          both &&
          html`
            <${Notice} title="Version ${loaded.version} is loaded, with what you typed">
              ${
                both.length
                  ? `Both changed ${both.map(fieldInWords).join(", ")}: what you typed stands there. Look ` +
                    "at it before you save."
                  : "The two changes are of different fields: both are in the form now."
              }
            <//>
          `
        }
      <//>
      ${leaving.question}
    </div>
  `;
}

function More({ form, projectId }) {
  const layers = useAll(pathOf(projectId, "/experiment_layers")).data ?? [];
  const holdouts = useAll(pathOf(projectId, "/holdouts")).data ?? [];
  const names = [...new Set(["default", form.values.layer, ...layers.map(({ name }) => name)])];
  return html`
    <details open=${["alpha", "tightest_at", "layer", "holdout"].some((name) => form.errors[name])}>
      <summary>Statistics, layer and holdout</summary>
      <div class="field-grid">
        <${TextField}
          ...${form.bind("alpha")}
          label="False alarms, %"
          hint=${FALSE_ALARMS_HINT}
          inputmode="decimal"
          autocomplete="off"
        />
        <${TextField}
          ...${form.bind("tightest_at")}
          label="Units that you expect"
          hint="In all arms together, 20 to 100,000,000. Intervals are tightest at this number, and hold at any other."
          inputmode="numeric"
          autocomplete="off"
        />
        <${Select}
          ...${form.bind("layer")}
          label="Layer"
          hint=${LAYER_HINT}
          options=${names.map((name) => [name, name])}
        />
        <${Select}
          ...${form.bind("holdout")}
          label="Holdout"
          hint="Its units take part in no experiment that names it."
          options=${[["", "none"], ...holdouts.map(({ name, size }) => [name, `${name}, ${coverageShown(size)}`])]}
        />
      </div>
    </details>
  `;
}

// The fields of the arms in the form of an experiment: the model of each, its part of the units, and its own settings.

import { Button } from "../../../components/button.js";
import { Select, TextArea, TextField } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { percent } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { partsInWords, sharesOf } from "../words.js";
import { ArmModel } from "./models.js";
import { mayAddArm, newArm, partsOf } from "./values.js";
import { wrongPart } from "./wrong.js";

const ARMS_HINT =
  "The first is the control: the others are compared with it, and it is served wherever nothing is to be " +
  "compared.";

const OWN = ["temperature", "system_prompt", "mode"];
const MODES = [
  ["fill", "Only what a request leaves open"],
  ["replace", "What a request gives as well"],
];

export function Arms({ form, models, projectId }) {
  const { arms } = form.values;
  const change = (place, changes) =>
    form.set(
      "arms",
      arms.map((arm, each) => (each === place ? { ...arm, ...changes } : arm)),
    );
  const add = () => form.set("arms", evened([...arms, newArm(`treatment-${arms.length}`)]));
  const remove = (place) => form.set("arms", evened(arms.filter((_, each) => each !== place)));
  const shares = arms.some(({ share }) => wrongPart(share)) ? null : sharesOf(partsOf(arms));
  return html`
    <${Section}
      title="Arms"
      hint=${ARMS_HINT}
      actions=${
        mayAddArm(arms) &&
        html`
          <${Button} small icon="plus" onClick=${add}>
            Add an arm
          <//>
        `
      }
    >
      <div class="arms">
        ${arms.map(
          (arm, place) => html`
            <${Arm}
              key=${place}
              place=${place}
              arm=${arm}
              share=${shares?.[place]}
              errors=${form.errors}
              models=${models}
              projectId=${projectId}
              onChange=${(changes) => change(place, changes)}
              onRemove=${arms.length > 2 && place > 0 && (() => remove(place))}
            />
          `,
        )}
      </div>
      ${shares && html`<p class="hint">${partsInWords(partsOf(arms).map(({ weight }) => weight / 100))}</p>`}
      ${
        form.errors.arms &&
        html`
          <p class="field-error" role="alert">
            ${form.errors.arms}
          </p>
        `
      }
    <//>
  `;
}

/** Return the arms with equal parts: latencies are compared most fairly between arms of one size. */
function evened(arms) {
  const share = String(Math.floor(10_000 / arms.length) / 100);
  return arms.map((arm) => ({ ...arm, share }));
}

/** One arm in the form. share: the share of units that its part of the sum is; undefined while some part is wrong. */
function Arm({ place, arm, share, errors, models, projectId, onChange, onRemove }) {
  const field = (name) => ({
    name: `arms.${place}.${name}`,
    value: arm[name],
    error: errors[`arms.${place}.${name}`],
    onValue: (value) => onChange({ [name]: value }),
  });
  return html`
    <fieldset class="arm">
      <legend class="label">${place === 0 ? "Control" : `Treatment${place > 1 ? ` ${place}` : ""}`}</legend>
      ${
        onRemove &&
        html`<${Button} kind="quiet" small icon="trash" label="Remove ${arm.name || "this arm"}" onClick=${onRemove} />`
      }
      <${TextField} ...${field("name")} label="Name" autocomplete="off" spellcheck="false" />
      <${ArmModel} ...${field("model")} label="Serves" projectId=${projectId} models=${models} />
      <${TextField}
        ...${field("share")}
        label="Part of the units"
        hint=${share === undefined ? undefined : `gets ${percent(share)} of the units`}
        inputmode="decimal"
        autocomplete="off"
      />
      <details
        open=${
          arm.temperature !== "" || arm.system_prompt !== "" || OWN.some((name) => errors[`arms.${place}.${name}`])
        }
      >
        <summary>Its own settings</summary>
        <div class="stack">
          <${TextField}
            ...${field("temperature")}
            label="Temperature"
            inputmode="decimal"
            autocomplete="off"
            placeholder="as without"
          />
          <${TextArea} ...${field("system_prompt")} label="System prompt" rows=${3} placeholder="as without" />
          <${Select} ...${field("mode")} label="They count for" options=${MODES} />
        </div>
      </details>
    </fieldset>
  `;
}

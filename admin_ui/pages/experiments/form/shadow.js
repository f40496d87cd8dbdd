// The fields of the shadow arm in the form of an experiment: the model that gets copies of requests, and their share.

import { TextField } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { html } from "../../../lib/html.js";
import { ArmModel } from "./models.js";

const SHADOW_ARM_HINT =
  "Gets copies of requests, after their replies. Nobody gets its answers and it is not compared: try here " +
  "what nobody should meet yet. Each copy is billed to this tenant, in the service tier shadow.";

export function Shadow({ form, models, projectId }) {
  const { shadow } = form.values;
  const field = (name) => ({
    name: `shadow.${name}`,
    value: shadow[name],
    error: form.errors[`shadow.${name}`],
    onValue: (value) => form.set("shadow", { ...shadow, [name]: value }),
  });
  const withNone = { ...models, options: [["", "Nothing: no shadow arm"], ...models.options] };
  return html`
    <${Section}
      title="Shadow arm"
      hint=${SHADOW_ARM_HINT}
    >
      <div class="field-grid">
        <${ArmModel} ...${field("model")} label="Copies go to" projectId=${projectId} models=${withNone} />
        ${
          shadow.model &&
          html`
            <${TextField} ...${field("name")} label="Name of the shadow arm" autocomplete="off" spellcheck="false" />
            <${TextField}
              ...${field("share")}
              label="Part of the requests, %"
              hint="A few run at once, while there is room to spare. The others are dropped and counted."
              inputmode="decimal"
              autocomplete="off"
            />
          `
        }
      </div>
    <//>
  `;
}

// The form by which all data of one unit is deleted.

import { Confirm } from "../../../components/dialog.js";
import { Notice } from "../../../components/feedback.js";
import { Form, TextField, useForm } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { plural } from "../../../lib/format/format.js";
import { html, useState } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { given, notLonger } from "../../../lib/rules/checks.js";
import { MAX_UNIT_CHARS } from "../words.js";

const FORGET_A_UNIT_HINT =
  "For somebody who asks that nothing be kept about them: what experiments know of one unit goes, and the " +
  "sums are corrected.";

/** The form that forgets a unit. The unit's name is sent once; it is in no URL and is not stored. */
export function Forget({ projectId }) {
  const [asked, ask] = useState(null);
  const form = useForm(
    { unit: "" },
    async ({ unit }) => ask(unit.trim()),
    ({ unit }) => ({ unit: given(unit, "Give the unit as requests name it.") ?? notLonger(unit, MAX_UNIT_CHARS) }),
  );
  const forget = async () => {
    const { experiments } = await post(pathOf(projectId, "/experiment_units/forget"), { unit: asked });
    invalidate(pathOf(projectId, "/experiments"));
    form.set("unit", "");
    toast(
      experiments ? `The unit is forgotten in ${plural(experiments, "experiment")}` : "No experiment knew this unit",
    );
  };
  return html`
    <${Section}
      title="Forget a unit"
      hint=${FORGET_A_UNIT_HINT}
      card
    >
      <${Form} form=${form} verb="Forget it …" what="forget the unit">
        <${TextField}
          ...${form.bind("unit")}
          label="Unit"
          hint="As requests name it, such as ann@example.com."
          autocomplete="off"
          spellcheck="false"
        />
      <//>
      ${
        asked !== null &&
        html`
          <${Confirm}
            title="Forget this unit?"
            verb="Forget the unit"
            name=${asked}
            onClose=${() => ask(null)}
            act=${forget}
          >
            <p>
              All that experiments know of it is removed and their results no longer count it. Its next request makes
              it a new unit.
            </p>
            <${Notice}>Usage and invoices know nothing of units, and stay as they are.<//>
          <//>
        `
      }
    <//>
  `;
}

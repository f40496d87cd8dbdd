// The estimate of how long an experiment takes to find a change of a given size, by the tenant's own traffic.

import { Notice } from "../../../components/feedback.js";
import { TextField } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { html, useState } from "../../../lib/html.js";
import { number } from "../../../lib/rules/checks.js";
import { sizedBy, sizeNote, unevenNote, useSize } from "./plan.js";
import { metricTitle, sharesOf } from "../words.js";

export function DurationEstimate({ projectId, experiment: { id, version, metrics, arms } }) {
  const [effect, setEffect] = useState("5");
  const [{ metric }] = metrics.primary;
  const wrong = effect.trim() ? number(effect, { min: 0.1, max: 1000 }) : "Give a change, such as 5.";
  const { size, problem } = useSize(
    projectId,
    wrong ? null : { experiment_id: id, metric: sizedBy(metric), relative_effect: Number(effect) / 100 },
    version,
  );
  return html`
    <${Section} title="How long it takes" card>
      <div class="form">
        <${TextField}
          label="Change worth finding, %"
          hint="Of “${metricTitle(metric)}”; smaller ones take far longer to find."
          value=${effect}
          onValue=${setEffect}
          error=${wrong}
          inputmode="decimal"
          autocomplete="off"
        />
      </div>
      ${
        (size || problem) &&
        html`
          <${Notice}
            title=${size ? sizeNote(metric) + size.text + unevenNote(sharesOf(arms)) : "How long it takes is not known"}
          >
            ${size ? "" : problem}
          <//>
        `
      }
    <//>
  `;
}

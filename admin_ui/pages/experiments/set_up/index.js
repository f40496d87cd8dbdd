// The set-up of an experiment: its arms, the units that it covers, the metrics that decide; what may still be changed,
// and the definition as JSON.

import { Button, Code } from "../../../components/button.js";
import { Command } from "../../../components/feedback.js";
import { Facts, Section } from "../../../components/page.js";
import { percent, plural } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { to } from "../../../lib/router.js";
import { can } from "../../../lib/session.js";
import { coverageShown, daysDeclared, isOpen, sourceInWords, windowInWords } from "../words.js";
import { Arms } from "./arms.js";
import { Declared } from "./declared.js";
import { definitionOf, times } from "./definition.js";

export function SetUp({ projectId, experiment, ask }) {
  const { id, state, model, unit, coverage, layer, holdout, analysis } = experiment;
  const mayWrite = can("experiments.write", projectId);
  const mayChange = mayWrite && isOpen(experiment);
  const button = (title, what) => html`
    <${Button} small onClick=${() => ask(what)}>
      ${title}
    <//>
  `;
  return html`
    <${Section}
      title="Arms"
      actions=${
        mayChange &&
        html`
          ${button("Change weights", "weights")}
          ${button("End an arm", "end")}
          ${experiment.shadow && button("Change the shadow's share", "shadow")}
        `
      }
    >
      <${Arms} experiment=${experiment} />
    <//>
    <div class="grid-2">
      <${Section}
        title="Whom it covers"
        card
        actions=${mayChange && coverage < 10_000 && button("Cover more", "coverage")}
      >
        <${Facts}
          rows=${[
            ["Asked for as", html`<${Code} text=${model} what="model string" />`],
            ["A unit is", sourceInWords(unit.from)],
            [
              "Coverage",
              `${coverageShown(coverage)} of the ` +
                `units${coverage < 10_000 ? "; all others get the control and are not counted" : ""}`,
            ],
            ["Layer", `${layer}: other experiments on it have no unit in common with this one`],
            ["Holdout", holdout ?? "none"],
          ]}
        />
      <//>
      <${Section} title="Statistics and times" card>
        <${Facts}
          rows=${[
            ["False alarms at most", percent(analysis.alpha)],
            ["Intervals tightest at", plural(analysis.tightest_at, "unit")],
            ["Outcomes count for", windowInWords(analysis)],
            ["Decided after", analysis.min_days ? daysDeclared(analysis.min_days) : "any time: no days are declared"],
            ...times(experiment),
          ]}
        />
      <//>
    </div>
    <${Section} title="Metrics" actions=${mayChange && button("Add a guardrail", "guardrail")}>
      <${Declared} experiment=${experiment} />
    <//>
    <${Section}
      title="Definition"
      hint="Version ${experiment.version}, as the API and the command line take it."
      actions=${
        mayWrite &&
        state === "draft" &&
        html`
          <${Button} small href=${to("experiments", projectId, id, "edit")}>
            Change the draft
          <//>
        `
      }
    >
      <div class="definition">
        <${Command} label="Definition" text=${JSON.stringify(definitionOf(experiment), null, 2)} />
      </div>
    <//>
  `;
}

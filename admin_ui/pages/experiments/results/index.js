// The results of an experiment: one metric over time, and each metric of each arm beside the control, with the
// conclusion.

import { Button } from "../../../components/button.js";
import { Empty, Loaded, Notice } from "../../../components/feedback.js";
import { useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { useMonthlyCost } from "../../../lib/projects_api.js";
import { can } from "../../../lib/session.js";
import { experimentPath } from "../paths.js";
import { isProven, percentsSpaced, windowInWords } from "../words.js";
import { ByAge } from "./ages.js";
import { ArmUnits, ShadowArm } from "./arms.js";
import { Exports } from "./exports.js";
import { Judged } from "./judged.js";
import { OverTime } from "./over_time.js";
import { OfRole } from "./roles.js";
import { Segments } from "./segments.js";
import { ROLES } from "./words.js";

const EVERY_MS = 60_000;

export function Results({ projectId, experiment, results, own, ask }) {
  const timeline = useApi(experimentPath(projectId, experiment.id, "/timeline"), {}, { every: EVERY_MS });
  const { currency } = useMonthlyCost(projectId);
  const shared = { projectId, experiment, own, currency };
  return html`
    <${Loaded} from=${results} what="load the results">
      ${(look) => html`
        <${Verdict} projectId=${projectId} look=${look} experiment=${experiment} ask=${ask} />
        ${
          look.comparisons.length + look.quantiles.length === 0
            ? html`<${NotYet} experiment=${experiment} />`
            : html`
              <${OverTime} ...${shared} look=${look} days=${timeline.data?.data} />
              <${ByAge} ...${shared} look=${look} />
            `
        }
        <${ArmUnits} look=${look} experiment=${experiment} />
        ${look.shadow && html`<${ShadowArm} shadow=${look.shadow} currency=${currency} />`}
        ${ROLES.map(
          ([role, title, hint]) => html`
            <${OfRole} key=${role} ...${shared} look=${look} role=${role} title=${title} hint=${hint} />
          `,
        )}
        <${Judged} ...${shared} look=${look} />
        <${Segments} ...${shared} />
        <${Exports} projectId=${projectId} experiment=${experiment} />
      `}
    <//>
  `;
}

function Verdict({ projectId, look, experiment: { decided_arm: decided, possible }, ask }) {
  const { is_srm: isSrm, may_decide: may, conclusion } = look;
  if (isSrm)
    return html`
      <${Notice} tone="bad" title="Units are not split as declared">
        Nothing here is to be believed until that is mended: something keeps units of one arm from being counted.
        Health shows where.
      <//>
    `;
  const isKnown = may && [...look.comparisons, ...look.quantiles].some(isProven);
  const isOver = decided !== null || isKnown;
  const stops = isKnown && possible.includes("stop") && can("experiments.write", projectId);
  return html`
    <${Notice}
      tone=${isKnown ? "good" : "info"}
      title=${isOver ? "What may be concluded" : "What may be concluded so far"}
      action=${
        stops &&
        html`
          <${Button} small onClick=${() => ask("stop")}>
            Stop, then choose an arm
          <//>
        `
      }
    >
      ${percentsSpaced(conclusion)}
      ${decided === null && isKnown ? " Intervals hold although you look now, and again later." : ""}
    <//>
  `;
}

function NotYet({ experiment: { analysis } }) {
  return html`
    <${Empty} icon="clock" title="No unit's window has ended yet">
      What a unit does counts for ${windowInWords(analysis)} after its first request, and is in the results
      afterwards. Errors and refusals count at once.
    <//>
  `;
}

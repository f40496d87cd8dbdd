// The dialogs that confirm a change of an experiment's state (start, pause, stop, decide, archive); each says what
// changes for callers.

import { Confirm } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Select } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { percent } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { navigate } from "../../lib/router.js";
import { experimentPath } from "./paths.js";
import { Warnings } from "./warnings.js";
import {
  coverageShown,
  daysDeclared,
  firstResults,
  metricTitle,
  servedBy,
  settingsInWords,
  shadowInWords,
  sharesOf,
  sourceInWords,
  windowInWords,
} from "./words.js";

const act = (projectId, id, verb, body) => async () => {
  await post(experimentPath(projectId, id, `/${verb}`), body);
  invalidate(pathOf(projectId, "/experiments"), pathOf(projectId, "/aliases"));
};

export function Start({ projectId, experiment, onClose }) {
  const { id, name, model, state, why, arms, shadow, unit, coverage, analysis } = experiment;
  const done = async () => (
    await act(projectId, id, "start")(), toast(state === "paused" ? `${name} goes on` : `${name} runs`)
  );
  if (state === "paused") {
    return html`
      <${Confirm} title="Let ${name} go on?" verb="Go on" danger=${false} onClose=${onClose} act=${done}>
        <p>
          Units that had an arm get it again within two seconds, on every gateway; new ones are given one. Requests
          that run finish as they began.
        </p>
        ${
          why &&
          html`
            <${Notice} tone="warn" title="${why.arm} does harm by ${metricTitle(why.metric)}">
              The guardrail that paused the experiment for this does not pause it a second time: you overrule it.
            <//>
          `
        }
      <//>
    `;
  }
  const shares = sharesOf(arms);
  return html`
    <${Confirm} title="Start ${name}?" verb="Start" danger=${false} onClose=${onClose} act=${done}>
      <p>
        From now on requests for <code>${model}</code> are answered by one of these, and each unit always by the
        same:
      </p>
      <ul class="plain">
        ${arms.map(
          (arm, place) => html`
            <li key=${arm.name}>
              <b>${arm.name}</b>, ${percent(shares[place])}: <${Target} target=${arm.target} />
            </li>
          `,
        )}
      </ul>
      <p>
        A unit is ${sourceInWords(unit.from)}. Requests without one get ${arms[0].name}
        ${
          coverage < 10_000
            ? `, and so do those of the ${coverageShown(10_000 - coverage)} of the units that take no part`
            : ""
        }
        .
      </p>
      ${shadow && html`<p>${shadowInWords(shadow)}</p>`}
      <${Warnings} experiment=${experiment} />
      <p>
        The arms stay on the versions of this moment, and those stay loaded. Name, unit, arms and the metrics that
        decide cannot change any more. ${firstResults(analysis)}
      </p>
    <//>
  `;
}

export function Pause({ projectId, experiment: { id, name, model, arms }, onClose }) {
  return html`
    <${Confirm}
      title="Pause ${name}?"
      verb="Pause"
      danger=${false}
      onClose=${onClose}
      act=${async () => (await act(projectId, id, "pause")(), toast(`${name} is paused`))}
    >
      <p>
        All requests for <code>${model}</code> get <b>${arms[0].name}</b> within two seconds, on every gateway, and
        are not analysed. Those that run finish as they began.
      </p>
      <p>Units that had an arm get it again once the experiment goes on.</p>
    <//>
  `;
}

export function Stop({ projectId, experiment: { id, name, model, arms, analysis }, look, onClose }) {
  return html`
    <${Confirm}
      title="Stop ${name} for good?"
      verb="Stop the experiment"
      name=${name}
      onClose=${onClose}
      act=${async () => (await act(projectId, id, "stop")(), toast(`${name} is stopped: choose an arm`))}
    >
      <${TooEarly} look=${look} analysis=${analysis} />
      <p>
        All requests for <code>${model}</code> get <b>${arms[0].name}</b> within two seconds, until you choose an arm.
        No unit is given another arm any more.
      </p>
      <p>What units do until their windows of ${windowInWords(analysis)} end is still counted.</p>
    <//>
  `;
}

export function Decide({ projectId, experiment: { id, name, model, arms, analysis }, look, onClose }) {
  const [arm, choose] = useState("");
  const chosen = arms.find((each) => each.name === arm);
  return html`
    <${Confirm}
      title="Which arm of ${name} stays?"
      verb=${chosen ? `Serve ${arm} to all` : "Choose an arm first"}
      isReady=${chosen !== undefined}
      danger=${false}
      onClose=${onClose}
      act=${async () => (await act(projectId, id, "decide", { arm })(), toast(`${model} serves ${arm}`))}
    >
      <${TooEarly} look=${look} analysis=${analysis} />
      ${look && html`<p>${look.conclusion}</p>`}
      <${Select}
        label="Arm"
        value=${arm}
        onValue=${choose}
        options=${[
          ["", "Choose"],
          ...arms.map((each, place) => [
            each.name,
            `${each.name}${place === 0 ? ", the control" : ""}: ${servedBy(each)}`,
          ]),
        ]}
      />
      ${
        chosen &&
        html`
          <p>
            All requests for <code>${model}</code> get${" "}
            <${Target} target=${{ ...chosen.target, model: servedBy(chosen) }} /> within two seconds. Programs change
            nothing: the name becomes an alias, which you can move later.
          </p>
        `
      }
    <//>
  `;
}

/** A target's model string, with the settings that the arm sets beside it. */
const Target = ({ target }) => html`
  <code>${target.model}</code>
  ${settingsInWords(target) && ` with ${settingsInWords(target)}`}
`;

function TooEarly({ look, analysis }) {
  if (!look || look.may_decide) return null;
  const why = look.is_srm
    ? "Units are not split as declared: the results are not to be believed, and choosing by them is guessing."
    : `${look.days} of ${daysDeclared(analysis.min_days)} are over: what shows now may be of some weekdays alone.`;
  return html`
    <${Notice} tone="warn" title="It is too early to decide by the results">
      ${why}
    <//>
  `;
}

export function Archive({ projectId, experiment: { id, name }, onClose }) {
  return html`
    <${Confirm}
      title="Archive ${name}?"
      verb="Archive"
      danger=${false}
      onClose=${onClose}
      act=${async () => (await act(projectId, id, "archive")(), toast(`${name} is archived`))}
    >
      <p>Nothing changes for callers. Its results stay to be looked at.</p>
    <//>
  `;
}

export function DeleteDraft({ projectId, experiment: { id, name }, onClose }) {
  return html`
    <${Confirm}
      title="Delete the draft ${name}?"
      verb="Delete the draft"
      onClose=${onClose}
      act=${async () => {
        await del(experimentPath(projectId, id));
        invalidate(pathOf(projectId, "/experiments"));
        navigate(`/admin/experiments?project=${encodeURIComponent(projectId)}`, { replace: true });
        toast(`The draft ${name} is deleted`);
      }}
    >
      <p>Nothing of it was ever served: nothing changes for callers.</p>
    <//>
  `;
}

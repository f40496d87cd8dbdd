// The examples of calls of an experiment: a request with its unit, and feedback; the arm that a unit gets; and the
// model that the name stands for once the experiment has ended.

import { Command, Notice } from "../../components/feedback.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { ApiError, post } from "../../lib/api.js";
import { useAll } from "../../lib/data.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { given, notLonger } from "../../lib/rules/checks.js";
import { to } from "../../lib/router.js";
import { MAX_UNIT_CHARS, isBuiltIn, isOpen, labelsOf, reasonInWords, servedBy, sourceInWords } from "./words.js";

const SEND_FEEDBACK_HINT =
  "About the id of the reply, at any time after its first token. " + "The same source voting again replaces its vote.";

const UNIT = "ann-4711";

export function Calls({ projectId, experiment, own }) {
  return experiment.decided_arm === null
    ? html`<${Undecided} projectId=${projectId} experiment=${experiment} own=${own} />`
    : html`<${Decided} projectId=${projectId} experiment=${experiment} />`;
}

const UNTIL = {
  paused: "until the experiment goes on; units that had an arm get it again then",
  stopped: "until an arm is chosen",
};

/** What the model string of a decided experiment answers now: the alias that took the experiment's place. */
function Decided({ projectId, experiment }) {
  const { model, decided_arm: decided, arms } = experiment;
  const aliases = useAll(pathOf(projectId, "/aliases"));
  if (aliases.data === undefined) return null;
  const { serves } = arms.find(({ name }) => name === decided);
  const alias = aliases.data.find(({ name }) => name === model);
  if (!alias)
    return html`
      <${Notice} tone="warn" title="Nothing answers to “${model}” any more">
        The name was removed after ${decided} was chosen: requests for it are refused with 404.
      <//>
    `;
  const isMoved =
    alias.adapter !== serves.adapter ||
    alias.version !== serves.version ||
    (serves.adapter === null && alias.pool !== serves.pool);
  return html`
    <${Notice} tone="good" title="“${model}” answers with ${answerOf(alias)}">
      ${decided} was chosen, which was ${serves.model}.${isMoved ? " The name was moved since." : ""}
      ${alias.has_treatment ? " The arm's settings count for each request." : ""} Nobody is given an arm any more:
      requests need not say whose they are, and replies name no arm.
    <//>
    <${Section} title="Ask for the model" hint="Programs that sent the model string go on as they are.">
      <${Command} label="curl line" text=${requestLine({ model, unit: { from: "api_key" } })} />
    <//>
  `;
}

/** Return what an alias points at, as a model string or in words. */
function answerOf({ target_kind: kind, experiment, pool, adapter, version }) {
  if (kind === "experiment") return `the experiment ${experiment}`;
  if (kind === "route") return "a route";
  return adapter ? `${pool ? `${pool}:` : ""}${adapter}@${version}` : pool;
}

function Undecided({ projectId, experiment, own }) {
  const { model, unit, metrics, state, arms } = experiment;
  const wanted = [...metrics.primary, ...metrics.guardrails]
    .map(({ metric }) => metric)
    .find((metric) => !isBuiltIn(metric));
  return html`
    ${
      state in UNTIL &&
      html`
        <${Notice} tone="warn" title="“${model}” answers everybody with ${servedBy(arms[0])}">
          That is ${arms[0].name === "control" ? "" : `${arms[0].name}, `}the control, ${UNTIL[state]}.
        <//>
      `
    }
    <${Section}
      title="Ask for the model"
      hint="Programs send the model string “${model}” and say whose the request is: ${sourceInWords(unit.from)}."
    >
      <${Command} label="curl line" text=${requestLine(experiment)} />
      <p class="hint">
        The reply's header <code>x-lorikeet-experiment</code> names the arm. Feedback names the reply by the id in
        its body. ${state === "draft" ? "It works once the experiment has started." : ""}
      </p>
    <//>
    <${Section}
      title="Send feedback"
      hint=${SEND_FEEDBACK_HINT}
    >
      <${Command} label="feedback line" text=${feedbackLine(wanted ?? Object.keys(own)[0] ?? "thumbs_up", own)} />
      <p class="hint">
        ${
          wanted
            ? html`“${wanted}” is what this experiment is judged by.
        `
            : html`
              This experiment is judged by numbers of the gateway alone, so it needs none.${" "}
              <a href="/admin/experiments/metrics?project=${encodeURIComponent(projectId)}">Metrics of feedback</a>
            `
        }${" "}
        A <a href=${to("tenants", projectId, "keys")}>key</a> with the scope “feedback” can do nothing but this, so
        that it may live in a browser.
      </p>
    <//>
    ${isOpen(experiment) && html`<${WhichArm} projectId=${projectId} experiment=${experiment} />`}
  `;
}

/** Return a request as a curl line, with the unit where the experiment looks for it. */
function requestLine({ model, unit: { from } }) {
  const isKey = from === "metadata" || from.startsWith("metadata.");
  const named =
    from === "x-lorikeet-unit" || from === "api_key"
      ? {}
      : isKey
        ? { metadata: { [from.slice("metadata.".length)]: UNIT } }
        : { [from]: UNIT };
  const header = from === "x-lorikeet-unit" ? `  -H "x-lorikeet-unit: ${UNIT}" \\\n` : "";
  const body = { model, ...named, messages: [{ role: "user", content: "Hello" }], max_tokens: 40 };
  return (
    `curl -i ${window.location.origin}/v1/chat/completions \\\n` +
    `  -H "Authorization: Bearer $LORIKEET_API_KEY" \\\n` +
    `${header}  -H "Content-Type: application/json" \\\n` +
    `  -d '${JSON.stringify(body)}'`
  );
}

export function feedbackLine(metric, own) {
  const { type = "boolean" } = own[metric] ?? {};
  const value = type === "number" ? 4.5 : type === "label" ? (labelsOf(own[metric])[0]?.[0] ?? "good") : true;
  const body = { completion_id: "chatcmpl-…", metric, value, source: "user" };
  return (
    `curl ${window.location.origin}/v1/feedback \\\n` +
    `  -H "Authorization: Bearer $LORIKEET_API_KEY" \\\n` +
    `  -H "Content-Type: application/json" \\\n` +
    `  -d '${JSON.stringify(body)}'`
  );
}

function WhichArm({ projectId, experiment }) {
  const [found, setFound] = useState(null);
  const form = useForm(
    { unit: "" },
    async ({ unit }) => {
      const { assignment } = await post(pathOf(projectId, "/experiments/preview"), {
        experiment_id: experiment.id,
        unit: unit.trim(),
      });
      if (!assignment) throw new ApiError({ status: 400, param: "unit", message: "The gateway does not say." });
      setFound({ unit: unit.trim(), ...assignment });
    },
    ({ unit }) => ({ unit: given(unit, "Give the unit as requests name it.") ?? notLonger(unit, MAX_UNIT_CHARS) }),
  );
  return html`
    <${Section} title="Which arm does somebody get?" hint="Nothing is stored, and it counts as no exposure." card>
      <${Form} form=${form} verb="Tell" what="tell the arm">
        <${TextField}
          ...${form.bind("unit")}
          label="Unit"
          hint="As requests name it."
          autocomplete="off"
          spellcheck="false"
        />
      <//>
      ${
        found &&
        html`
          <${Notice} title="“${found.unit}” gets ${found.arm}">
            ${
              found.reason === "split"
                ? "It is analysed."
                : `It is not analysed: its requests ${reasonInWords(found.reason)}.`
            }
          <//>
        `
      }
    <//>
  `;
}

// How programs call an experiment, say whose a request is, and send feedback; and which arm a unit gets.

import { Command, Notice } from "../../components/feedback.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { ApiError, post } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { given } from "../../lib/rules/checks.js";
import { to } from "../../lib/router.js";
import { isBuiltIn, labelsOf, reasonInWords, sourceInWords } from "./words.js";

const UNIT = "ann-4711";

export function Calls({ projectId, experiment, own }) {
  const { model, unit, metrics, state } = experiment;
  const wanted = [...metrics.primary, ...metrics.guardrails].map(({ metric }) => metric).find((metric) => !isBuiltIn(metric));
  return html`
    <${Section} title="Ask for the model" hint=${`Programs send the model string “${model}” and say whose the request is: ${sourceInWords(unit.from)}.`}>
      <${Command} label="curl line" text=${requestLine(experiment)} />
      <p class="hint">The reply's header <code>x-lorikeet-experiment</code> names the arm, its id the request that feedback is about. ${state === "draft" ? "It works once the experiment has started." : ""}</p>
    <//>
    <${Section} title="Send feedback" hint="About the id of the reply, at any time after its first token. The same source voting again replaces its vote.">
      <${Command} label="feedback line" text=${feedbackLine(wanted ?? Object.keys(own)[0] ?? "thumbs_up", own)} />
      <p class="hint">${wanted ? html`“${wanted}” is what this experiment is judged by.` : html`This experiment is judged by numbers of the gateway alone, so it needs none. <a href=${`/admin/experiments/metrics?project=${encodeURIComponent(projectId)}`}>Metrics of feedback</a>`} A <a href=${to("tenants", projectId, "keys")}>key</a> with the scope “feedback” can do nothing but this, so that it may live in a browser.</p>
    <//>
    ${state !== "draft" && html`<${WhichArm} projectId=${projectId} experiment=${experiment} />`}`;
}

/** As a program sends it, with the unit where the experiment looks for it. */
function requestLine({ model, unit: { from } }) {
  const isKey = from === "metadata" || from.startsWith("metadata.");
  const named = from === "x-lorikeet-unit" || from === "api_key" ? {} : isKey ? { metadata: { [from.slice("metadata.".length)]: UNIT } } : { [from]: UNIT };
  const header = from === "x-lorikeet-unit" ? `  -H "x-lorikeet-unit: ${UNIT}" \\\n` : "";
  const body = { model, messages: [{ role: "user", content: "Hello" }], max_tokens: 40, ...named };
  return `curl -i ${window.location.origin}/v1/chat/completions \\\n  -H "Authorization: Bearer $LORIKEET_API_KEY" \\\n${header}  -H "Content-Type: application/json" \\\n  -d '${JSON.stringify(body)}'`;
}

export function feedbackLine(metric, own) {
  const { type = "boolean" } = own[metric] ?? {};
  const value = type === "number" ? 4.5 : type === "label" ? labelsOf(own[metric])[0]?.[0] ?? "good" : true;
  const body = { completion_id: "chatcmpl-…", metric, value, source: "user" };
  return `curl ${window.location.origin}/v1/feedback \\\n  -H "Authorization: Bearer $LORIKEET_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${JSON.stringify(body)}'`;
}

function WhichArm({ projectId, experiment }) {
  const [found, setFound] = useState(null);
  const form = useForm({ unit: "" }, async ({ unit }) => {
    const { assignment } = await post(pathOf(projectId, "/experiments/preview"), { experiment_id: experiment.id, unit: unit.trim() });
    if (!assignment) throw new ApiError({ status: 400, param: "unit", message: "The gateway does not say." });
    setFound({ unit: unit.trim(), ...assignment });
  }, ({ unit }) => ({ unit: given(unit, "Give the unit as requests name it.") }));
  return html`<${Section} title="Which arm does somebody get?" hint="Nothing is stored, and it counts as no exposure." card>
    <${Form} form=${form} verb="Tell" what="tell the arm">
      <${TextField} ...${form.bind("unit")} label="Unit" hint="As requests name it." autocomplete="off" spellcheck="false" maxlength="512" />
    <//>
    ${found && html`<${Notice} title=${`“${found.unit}” gets ${found.arm}`}>${found.reason === "split" ? "It is analysed." : `It is not analysed: its requests ${reasonInWords(found.reason)}.`}<//>`}
  <//>`;
}

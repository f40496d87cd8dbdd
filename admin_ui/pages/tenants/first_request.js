// A request that works with a key that was just made: its curl line, and the model in it.

import { Command } from "../../components/feedback.js";
import { html } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { useSession } from "../../lib/session.js";

const SHOWN_LETTERS = 8;

/**
 * The curl line of a first request. apiKey: a new key with its secret, which is masked on the page and included in the
 * copied text; no request is sent with it.
 */
export function FirstRequest({ apiKey }) {
  const { who } = useSession();
  const model = apiKey.models?.[0] ?? who.model;
  const masked = `${apiKey.value.slice(0, SHOWN_LETTERS)}••••••••`;
  return html`
    <div class="field">
      <span class="label">Try it in a terminal</span>
      <${Command} label="curl line" text=${curl(apiKey, masked, model)} copied=${curl(apiKey, apiKey.value, model)} />
      <p class="hint">What is copied has the key in it.</p>
    </div>
  `;
}

function curl({ scopes, project_id: project }, secret, model) {
  const base = window.location.origin;
  const bearer = `-H "Authorization: Bearer ${secret}"`;
  if (scopes.includes("inference")) {
    const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hello" }], max_tokens: 40 });
    return (
      `curl ${base}/v1/chat/completions \\\n  ${bearer} \\\n  -H "Content-Type: application/json" \\\n  -d ` +
      `'${body.replaceAll("'", "'\\''")}'`
    );
  }
  if (scopes.includes("feedback")) {
    const vote = JSON.stringify({ completion_id: "chatcmpl-…", metric: "thumbs_up", value: true });
    return `curl ${base}/v1/feedback \\\n  ${bearer} \\\n  -H "Content-Type: application/json" \\\n  -d '${vote}'`;
  }
  if (scopes.includes("adapters")) return `curl ${base}/v1/organization${pathOf(project, "/adapters")} \\\n  ${bearer}`;
  if (scopes.includes("experiments"))
    return `curl ${base}/v1/organization${pathOf(project, "/experiments")} \\\n  ${bearer}`;
  return `curl "${base}/v1/organization/usage/completions?start_time=$(($(date +%s) - 86400))" \\\n  ${bearer}`;
}

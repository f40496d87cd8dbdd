// A request that works with a key that was just made: its curl line, and the model in it.

import { html, useEffect, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { Command } from "../../components/feedback.js";

const SHOWN_LETTERS = 8;

/** key: as it was made, with its value. What is shown masks the key, what is copied has it. */
export function FirstRequest({ apiKey }) {
  const model = useFirstModel(apiKey);
  if (model === undefined) return null;
  const masked = `${apiKey.value.slice(0, SHOWN_LETTERS)}••••••••`;
  return html`<div class="field">
    <span class="label">Try it in a terminal</span>
    <${Command} label="curl line" text=${curl(apiKey, masked, model)} copied=${curl(apiKey, apiKey.value, model)} />
    <p class="hint">What is copied has the key in it.</p>
  </div>`;
}

function curl({ scopes, project_id: project }, secret, model) {
  const base = window.location.origin;
  const bearer = `-H "Authorization: Bearer ${secret}"`;
  if (scopes.includes("inference")) {
    const body = JSON.stringify({ model: model ?? "MODEL", messages: [{ role: "user", content: "Hello" }], max_tokens: 40 });
    return `curl ${base}/v1/chat/completions \\\n  ${bearer} \\\n  -H "Content-Type: application/json" \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
  }
  if (scopes.includes("adapters")) return `curl ${base}/v1/organization${pathOf(project, "/adapters")} \\\n  ${bearer}`;
  return `curl "${base}/v1/organization/usage/completions?start_time=$(($(date +%s) - 86400))" \\\n  ${bearer}`;
}

/** The first model that the key opens, asked with the key itself; null where it opens none, undefined meanwhile. */
function useFirstModel({ value, models, scopes }) {
  const [model, setModel] = useState(models?.[0]);
  useEffect(() => {
    if (model !== undefined) return undefined;
    if (!scopes.includes("inference")) return void setModel(null);
    const leave = new AbortController();
    // Not through the admin API's client: a refusal of this key is no end of the login.
    fetch("/v1/models", { headers: { authorization: `Bearer ${value}` }, credentials: "omit", signal: leave.signal })
      .then((reply) => (reply.ok ? reply.json() : { data: [] }))
      .then(({ data }) => setModel(data[0]?.id ?? null))
      .catch(() => !leave.signal.aborted && setModel(null));
    return () => leave.abort();
  }, []);
  return model;
}

// The facts of a request: its end with the reason, its model and its parameters.

import { Code } from "../../../components/button.js";
import { Notice } from "../../../components/feedback.js";
import { Num, Time } from "../../../components/numbers.js";
import { Facts } from "../../../components/page.js";
import { exactly } from "../../../lib/format/format.js";
import { html } from "../../../lib/html.js";
import { useProjectNames } from "../../../lib/projects.js";
import { to } from "../../../lib/router.js";
import { can } from "../../../lib/session.js";
import { KeyName } from "../filters.js";
import { requestsHref } from "../query.js";
import { TITLES, explained } from "../reasons.js";

export function Why({ request }) {
  const why = explained(request);
  if (request.service_tier === "shadow") {
    return html`
      <${Notice} title="A copy for a shadow arm of an experiment">
        Nobody got its answer. It was made of${" "}
        <a href=${to("requests", request.id.replace(/_shadow$/, ""))}>
          the request ${request.id.replace(/_shadow$/, "")}
        </a>${" "}
        and is billed at the tier “shadow”.${why ? ` ${why.title}: ${why.text}` : ""}
      <//>
    `;
  }
  return (
    why &&
    html`
      <${Notice} tone=${why.tone} title=${why.title}>
        ${why.text}
      <//>
    `
  );
}

export function What({ request }) {
  const names = useProjectNames();
  const [, adapter] = request.model.split(/:(.*)/);
  const projectId = request.project_id;
  return html`
    <${Facts}
      rows=${[
        ["Tenant", html`<a href=${to("tenants", projectId)}>${names(projectId)}</a>`],
        [
          "Key",
          html`<a href=${requestsHref({ project: projectId, key: request.api_key_id })}>
            <${KeyName} id=${request.api_key_id} projectId=${projectId} />
          </a>`,
        ],
        ["Model", html`<a href=${requestsHref({ project: projectId, model: request.model })}>${request.model}</a>`],
        ["Adapter", html`<${Adapter} request=${request} name=${adapter} />`],
        ["Endpoint", html`<code>${request.endpoint}</code>`],
        ["Streamed", request.stream ? "yes" : "no"],
        ["Service tier", request.service_tier],
        ["Ended", TITLES[request.finish_reason] ?? request.finish_reason],
        ["Began", html`<${Time} at=${request.created_at} />`],
        [
          "Input",
          html`
            ${exactly(request.input_tokens)}
            ${
              request.cached_tokens > 0 &&
              html`
                ${" "}
                <span class="faint">of which ${exactly(request.cached_tokens)} cached</span>
              `
            }
          `,
        ],
        [
          "Output",
          html`
            ${exactly(request.output_tokens)}
            ${
              request.discarded_tokens > 0 &&
              html`
                ${" "}
                <span class="faint">${exactly(request.discarded_tokens)} more past a stop, not billed</span>
              `
            }
          `,
        ],
        ["Trace", request.trace_id === null ? undefined : html`<${Code} text=${request.trace_id} what="trace id" />`],
        ["Per output token", html`<${Num} value=${request.tpot_ms} kind="ms" />`],
      ]}
    />
  `;
}

function Adapter({ request, name }) {
  if (request.adapter_id === null) return "none: the base itself";
  const text = `${name ?? request.adapter_id}${request.adapter_version === null ? "" : `, version ${request.adapter_version}`}`;
  return name && can("adapters.read", request.project_id)
    ? html`<a href=${to("adapters", request.project_id, name)}>${text}</a>`
    : text;
}

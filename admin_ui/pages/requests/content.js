// The logged content of a request, where its tenant logs it: read on a click, since each reading goes to the audit log.

import { Button } from "../../components/button.js";
import { ErrorBox, Notice } from "../../components/feedback.js";
import { Time } from "../../components/numbers.js";
import { Section } from "../../components/page.js";
import { ApiError, get } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { TITLES } from "./reasons.js";

export function Content({ request }) {
  const { id, project_id: projectId } = request;
  const [state, setState] = useState({ isBusy: false });
  if (!can("content.read", projectId)) {
    return html`
      <p class="hint">
        What it said is for the tenant's own people and the organization's owner, where the tenant's content log keeps
        it.
      </p>
    `;
  }
  // Not useApi, which reads again what changes: every reading is on record.
  const read = async () => {
    setState({ isBusy: true });
    try {
      setState({
        isBusy: false,
        content: await get(pathOf(projectId, `/requests/${encodeURIComponent(id)}/content`)),
      });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setState({ isBusy: false, error });
    }
  };
  const { isBusy, content, error } = state;
  return html`
    <${Section} title="What it said" hint="Redacted. Each reading is in the audit log.">
      ${
        error?.isMissing
          ? html`
            <${Notice} title="Nothing is logged of this request">
              Its tenant kept no content then, or no longer does. The content log is in the${" "}
              <a href=${to("tenants", projectId, "settings")}>tenant's settings</a>.
            <//>
          `
          : html`<${ErrorBox} error=${error} what="read what it said" retry=${read} />`
      }
      ${
        content
          ? html`<${Said} content=${content} />`
          : !error &&
            html`
              <div>
                <${Button} icon="requests" busy=${isBusy} onClick=${read}>
                  Show what it said
                <//>
              </div>
            `
      }
    <//>
  `;
}

function Said({ content }) {
  const { input, output } = content;
  const choice = ({ index, finish_reason: reason }) =>
    `${output.length > 1 ? `choice ${index + 1}` : "answer"}, ${reason ? (TITLES[reason] ?? reason).toLowerCase() : "not to its end"}`;
  return html`
    <div class="card stack">
      ${input.map(
        (message, place) => html`<${Turn} key="in ${place}" title=${message.role ?? "prompt"} turn=${message} />`,
      )}
      ${content.input_truncated && html`<p class="hint">The rest of what was sent is not kept.</p>`}
      ${output.map((each) => html`<${Turn} key="out ${each.index}" title=${choice(each)} turn=${each} />`)}
      ${output.length === 0 && html`<p class="hint">Nothing was answered, or only numbers.</p>`}
      ${content.output_truncated && html`<p class="hint">The rest of the answer is not kept.</p>`}
      <p class="hint">
        Kept until <${Time} at=${content.expires_at} />.
      </p>
    </div>
  `;
}

function Turn({ title, turn: { content, tool_calls: calls = [] } }) {
  return html`
    <section class="turn">
      <h3>${title}</h3>
      ${content && html`<div class="turn-text">${content}</div>`}
      ${calls.map(
        ({ name, arguments: given }, place) => html`
          <pre key=${place} class="turn-call" tabindex="0">
            <code>
              ${name}(${given})
            </code>
          </pre>
        `,
      )}
      ${!content && calls.length === 0 && html`<div class="faint">empty</div>`}
    </section>
  `;
}

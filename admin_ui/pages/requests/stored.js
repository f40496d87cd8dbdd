// The stored response of a request, and the conversation that it was added to: read on a click, for each reading goes
// to the audit log.

import { Button } from "../../components/button.js";
import { ErrorBox, Notice } from "../../components/feedback.js";
import { Section } from "../../components/page.js";
import { ApiError, get } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { can } from "../../lib/session.js";

export function Stored({ request }) {
  const { id, project_id: projectId, endpoint } = request;
  const [state, setState] = useState({});
  if (endpoint !== "/v1/responses" || !can("content.read", projectId)) return null;
  // Not useApi, which reads again what changes: every reading is on record.
  const read = async (path, as) => {
    setState({ ...state, busy: as, error: undefined });
    try {
      const found = await get(pathOf(projectId, path));
      setState((before) => ({ ...before, busy: undefined, [as]: found }));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setState((before) => ({ ...before, busy: undefined, error }));
    }
  };
  const { busy, response, conversation, error } = state;
  const readResponse = () => read(`/requests/${encodeURIComponent(id)}/response`, "response");
  const readConversation = () =>
    read(`/stored_conversations/${encodeURIComponent(response.conversation_id)}`, "conversation");
  return html`
    <${Section}
      title="Stored response"
      hint="As the tenant stored it, nothing redacted. Each reading is in the audit log."
    >
      ${
        error?.isMissing
          ? html`
            <${Notice}
              title=${response ? "The conversation is not there any more" : "No response of this request is stored"}
            >
              Its tenant deleted it, or the days for which it was stored are over.
            <//>
          `
          : html`<${ErrorBox} error=${error} what="read what is stored" />`
      }
      ${
        response
          ? html`<${Items} items=${[...response.input, ...response.output]} />`
          : !error &&
            html`
              <div>
                <${Button} icon="requests" busy=${busy === "response"} onClick=${readResponse}>
                  Show the stored response
                <//>
              </div>
            `
      }
      ${
        response?.conversation_id &&
        !conversation &&
        !error &&
        html`
          <div>
            <${Button} icon="requests" busy=${busy === "conversation"} onClick=${readConversation}>
              Show the whole conversation
            <//>
          </div>
        `
      }
      ${
        conversation &&
        html`
          <h3>
            The conversation <code>${conversation.id}</code>
          </h3>
          <${Items} items=${conversation.items} />
        `
      }
    <//>
  `;
}

function Items({ items }) {
  return html`
    <div class="card stack">
      ${items.map((item) => html`<${Item} key=${item.id} item=${item} />`)}
    </div>
  `;
}

function Item({ item }) {
  const call = item.arguments ?? item.input;
  return html`
    <section class="turn">
      <h3>${item.role ?? item.type.replaceAll("_", " ")}</h3>
      ${
        call !== undefined
          ? html`
            <pre class="turn-call" tabindex="0">
              <code>
                ${item.name}(${call})
              </code>
            </pre>
          `
          : html`
            <div class="turn-text">
              ${
                textOf(item) ||
                html`
                  <span class="faint">
                    ${item.type === "compaction" ? "a summary that its client keeps sealed" : "empty"}
                  </span>
                `
              }
            </div>
          `
      }
    </section>
  `;
}

/** Return the text of a message, of a tool's result or of reasoning. */
export function textOf({ content, output, summary }) {
  const parts = content ?? output ?? summary ?? "";
  return typeof parts === "string" ? parts : parts.map((part) => part.text ?? part.refusal ?? "").join("\n");
}

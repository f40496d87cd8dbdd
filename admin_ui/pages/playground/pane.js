// One side of the playground: its model, the conversation, and what each answer took.

import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Command, ErrorBox } from "../../components/feedback.js";
import { Money } from "../../components/numbers.js";
import { Choice } from "../../components/tabs.js";
import * as format from "../../lib/format/format.js";
import { html, useEffect, useRef, useState } from "../../lib/html.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { asCurl, asPython } from "./code.js";
import { ModelPicker } from "./models.js";

/**
 * One side. onRemove: removes the second side. api, request: the next request as it is now, and its entry of APIS, for
 * the code.
 */
export function Pane({ label, chat, model, models, projectId, onModel, onRemove, api, request }) {
  const log = useRef(null);
  const [showing, show] = useState(false);
  const length = chat.turns.reduce(
    (sum, { content, reasoning = "", result, cost }) => sum + content.length + reasoning.length + !!result + !!cost,
    chat.turns.length,
  );
  useEffect(() => {
    const { current } = log;
    if (current.scrollHeight - current.scrollTop - current.clientHeight < 160) current.scrollTop = current.scrollHeight;
  }, [length]);
  return html`
    <section class="pane" aria-label=${label}>
      <header class="pane-head">
        <${ModelPicker} label=${label} model=${model} models=${models} projectId=${projectId} onModel=${onModel} />
        <span class="row">
          <${Button} kind="quiet" small onClick=${() => show(true)}>
            Code
          <//>
          ${
            onRemove && html`<${Button} kind="quiet" small icon="close" label="Remove this side" onClick=${onRemove} />`
          }
        </span>
      </header>
      <div
        class="pane-log"
        ref=${log}
        role="log"
        aria-label="Conversation, ${label}"
        aria-busy=${chat.busy || undefined}
        tabindex="0"
      >
        ${chat.turns.length === 0 && !chat.error && html`<p class="faint pane-empty">Nothing said yet.</p>`}
        ${chat.turns.map(
          (turn, place) => html`
            <${Turn} key=${place} turn=${turn} waits=${chat.busy && place === chat.turns.length - 1} />
          `,
        )}
        <${ErrorBox} error=${chat.error} what="get an answer" />
        ${
          chat.error?.requestId &&
          can("limits.read", projectId) &&
          html`
            <p class="pane-why">
              <a
                href="${projectId ? to("tenants", projectId, "refusals") : "/admin/refusals"}?q=${encodeURIComponent(chat.error.requestId)}"
              >
                Why was this refused?
              </a>
            </p>
          `
        }
      </div>
      ${showing && html`<${Code} api=${api} request=${request} onClose=${() => show(false)} />`}
    </section>
  `;
}

function Turn({ turn, waits }) {
  const { role, content, reasoning, model, stopped, failed, result, cost } = turn;
  return html`
    <article class="turn ${role}">
      <h3>
        ${role === "user" ? "You" : model}
        ${failed && ", not answered"}
      </h3>
      ${
        reasoning &&
        html`
          <details class="turn-reasoning" open=${!content}>
            <summary>Reasoning</summary>
            <div>${reasoning}</div>
          </details>
        `
      }
      <div class="turn-text">
        ${content}
        ${waits && html`<i class="caret" aria-hidden="true"></i>`}
      </div>
      ${
        (result || stopped) &&
        html`
          <footer class="turn-facts">
            ${stopped ? html`<span>Stopped by you</span>` : html`<${Facts} result=${result} cost=${cost} />`}
          </footer>
        `
      }
    </article>
  `;
}

function Facts({ result: { usage, ttftMs, tokensPerS, totalMs, finishReason, requestId }, cost }) {
  return html`
    ${
      usage &&
      html`
        <span title="Tokens of the prompt, and of the answer">
          ${format.tokens(usage.input)} in, ${format.tokens(usage.output)} out
        </span>
      `
    }
    <span title="Until the first text came, as this page saw it">first token ${format.ms(ttftMs)}</span>
    ${tokensPerS !== null && html`<span>${format.count(Number(tokensPerS.toPrecision(3)))} tokens/s</span>`}
    <span title="Until the answer had ended">${format.ms(totalMs)}</span>
    ${cost && html`<${Money} nanos=${cost.nanos} currency=${cost.currency} />`}
    <span title="Why it ended">${finishReason?.replaceAll("_", " ")}</span>
    ${requestId && html`<a href="/admin/requests/${encodeURIComponent(requestId)}">Request</a>`}
  `;
}

const LANGUAGES = [
  ["curl", "curl"],
  ["python", "Python"],
];

function Code({ api, request, onClose }) {
  const [language, setLanguage] = useState("curl");
  const text = (language === "curl" ? asCurl : asPython)(window.location.origin, api, request);
  return html`
    <${Dialog} wide title="The same from a program" onClose=${onClose}>
      <div class="stack">
        <div class="spread">
          <${Choice} label="Language" value=${language} onValue=${setLanguage} options=${LANGUAGES} />
        </div>
        <${Command} text=${text} label=${language === "curl" ? "curl command" : "Python program"} />
        <p class="hint">Put your key in the environment variable LORIKEET_API_KEY first.</p>
      </div>
    <//>
  `;
}

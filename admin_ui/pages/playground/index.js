// Chat with one model or adapter, or with two side by side, over the public API as any program would.

import { Button } from "../../components/button.js";
import { ErrorBox } from "../../components/feedback.js";
import { Page } from "../../components/page.js";
import { html, useState } from "../../lib/html.js";
import { useProjectId } from "../../lib/projects.js";
import { setQuery, useLocation } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { APIS } from "./apis.js";
import { useConversation } from "./conversation.js";
import { useRememberedSettings } from "./remembered_settings.js";
import { needKey, useKey } from "./key.js";
import { useModels } from "./models.js";
import { Pane } from "./pane.js";
import { Access, Settings, apiOf, useSettings } from "./settings.js";

export default function Playground() {
  const { query } = useLocation();
  const projectId = useProjectId();
  useRememberedSettings(projectId);
  const access = useKey(projectId);
  const models = useModels(projectId, access);
  const settings = useSettings();
  const api = APIS[apiOf(settings.values)];
  const sides = [useConversation(), useConversation()];
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const chosen = [query.get("model") ?? "", query.get("with")];
  const isTwo = chosen[1] !== null;
  const shown = isTwo ? sides : sides.slice(0, 1);
  const busy = shown.some((chat) => chat.busy);
  const mayCall = access !== null || (projectId !== null && can("keys.write", projectId));
  const isWrong = Object.keys(settings.problem).length > 0;
  const problem = sides.find((chat) => chat.error)?.error;

  const send = async () => {
    const said = text.trim();
    if (!said || busy || !mayCall || isWrong) return;
    setError(null);
    try {
      const key = await needKey(projectId);
      setText("");
      const answered = await Promise.all(
        shown.map((chat, side) =>
          chat.send({ text: said, api, key, model: chosen[side] || models.base, settings: settings.asked, projectId }),
        ),
      );
      if (!answered.some(Boolean)) setText((now) => now || said);
    } catch (failure) {
      setError(failure);
    }
  };
  const stop = () => {
    for (const chat of shown) chat.stop();
  };
  const clear = () => {
    for (const chat of sides) chat.clear();
  };
  const request = (side) => {
    const said = sides[side].turns.filter(({ content, failed }) => content && !failed);
    const next = { role: "user", content: text.trim() || "Hello" };
    return api.body({ model: chosen[side] || models.base, turns: [...said, next], settings: settings.asked });
  };
  const choose = (side, model) => setQuery(side === 0 ? { model } : { with: model || models.base });
  const compare = () =>
    setQuery(
      { with: models.ids.find((id) => id !== (chosen[0] || models.base)) ?? chosen[0] ?? models.base },
      { push: true },
    );
  const keep = () => (sides[1].clear(), setQuery({ with: null }));
  return html`
    <${Page}
      wide
      title="Playground"
      lead="Each answer is a real request: it is metered, limited and charged as one."
      actions=${html`
        ${sides.some(({ turns }) => turns.length > 0) && html`<${Button} onClick=${clear}>Clear<//>`}
        ${
          !isTwo &&
          html`
            <${Button} icon="plus" onClick=${compare}>
              Compare
            <//>
          `
        }
      `}
    >
      <div class="play ${mayCall ? "" : "unset"}">
        <div class="play-main">
          <div class="panes ${isTwo ? "two" : ""}">
            ${shown.map(
              (chat, side) => html`
                <${Pane}
                  key=${side}
                  label=${isTwo ? `Side ${side + 1}` : "Model"}
                  chat=${chat}
                  model=${chosen[side]}
                  models=${models}
                  projectId=${projectId}
                  onModel=${(model) => choose(side, model)}
                  onRemove=${side === 1 && keep}
                  api=${api}
                  request=${request(side)}
                />
              `,
            )}
          </div>
          <${ErrorBox} error=${error} what="make a key" />
          <${Composer}
            text=${text}
            onText=${setText}
            busy=${busy}
            onSend=${send}
            onStop=${stop}
            hint=${hintOf(mayCall, projectId, isWrong)}
          />
        </div>
        <${Access}
          projectId=${projectId}
          access=${access}
          onProject=${(id) => (clear(), setQuery({ project: id, model: null, with: null }))}
        />
        <${Settings} settings=${settings} error=${problem} />
      </div>
    <//>
  `;
}

function hintOf(mayCall, projectId, isWrong) {
  if (!mayCall) return projectId === null ? "Choose the tenant that is called for first." : "Paste a key first.";
  return isWrong ? "A setting is wrong: see there." : "Enter sends, Shift with Enter begins a line.";
}

function Composer({ text, onText, busy, onSend, onStop, hint }) {
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    onSend();
  };
  return html`
    <form class="composer" onSubmit=${(event) => (event.preventDefault(), onSend())}>
      <textarea
        class="input"
        rows="2"
        aria-label="Message"
        placeholder="Say something"
        value=${text}
        onInput=${(event) => onText(event.target.value)}
        onKeyDown=${onKeyDown}
      ></textarea>
      <div class="spread">
        <span class="hint">${hint}</span>
        ${
          busy
            ? html`
              <${Button} kind="primary" icon="pause" onClick=${onStop}>
                Stop
              <//>
            `
            : html`
              <${Button} kind="primary" type="submit" disabled=${!text.trim()}>
                Send
              <//>
            `
        }
      </div>
    </form>
  `;
}

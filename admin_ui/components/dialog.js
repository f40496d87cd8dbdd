// Dialogs over the browser's own <dialog>: it keeps the focus inside, Escape closes it, and the focus returns.

import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { Button } from "./button.js";
import { ErrorBox } from "./feedback.js";

/** Open dialogs, the front one last. `asked()` of a dialog does what Escape does. */
const shown = [];

/** The browser's back button closes the front dialog; a locked one, which shows a secret once, stays open. */
window.navigation?.addEventListener("navigate", (event) => {
  const front = shown.at(-1);
  if (!front || event.navigationType !== "traverse" || !event.cancelable) return;
  event.preventDefault();
  front.current.asked();
});

/**
 * A dialog, which is open as long as it is rendered. onClose: called at Escape, the cross or the backdrop. side: a
 * drawer at the right.
 */
export function Dialog({ title, onClose, children, footer, wide = false, side = false, locked = false }) {
  const element = useRef(null);
  const id = useId();
  const self = useRef(null);
  self.current = { asked: () => locked || onClose() };
  useEffect(() => {
    element.current.showModal();
    shown.push(self);
    return () => {
      shown.splice(shown.indexOf(self), 1);
      element.current?.close();
    };
  }, []);
  return html`
    <dialog
      ref=${element}
      class="dialog ${wide ? "wide" : ""} ${side ? "side" : ""}"
      aria-labelledby=${id}
      onCancel=${(event) => {
        event.preventDefault();
        self.current.asked();
      }}
      onClick=${(event) => event.target === element.current && self.current.asked()}
    >
      <div class="dialog-box">
        <header class="dialog-head">
          <h2 id=${id}>${title}</h2>
          ${!locked && html`<${Button} kind="quiet" icon="close" label="Close" onClick=${onClose} />`}
        </header>
        <div class="dialog-body">${children}</div>
        ${footer && html`<footer class="dialog-foot">${footer}</footer>`}
      </div>
    </dialog>
  `;
}

/**
 * A question before a destructive action. children: say what will happen to whom. name: a name to be typed, for what
 * cannot be undone. act: an async function; once it is done, onClose is called. verb: the text of the button, such as
 * "Revoke key". isReady: false while a choice is missing.
 */
export function Confirm({ title, verb, name, act, onClose, children, danger = true, isReady = true }) {
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const ready = isReady && (!name || typed === name);
  const go = async (event) => {
    event.preventDefault();
    if (!ready || busy) return;
    setBusy(true);
    setError(null);
    try {
      await act();
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`
    <${Dialog}
      title=${title}
      onClose=${onClose}
      footer=${html`
        <${Button} onClick=${onClose}>Cancel<//>
        <${Button} kind=${danger ? "danger" : "primary"} busy=${busy} disabled=${!ready || busy} onClick=${go}>
          ${verb}
        <//>
      `}
    >
      <form onSubmit=${go}>
        <div class="prose">${children}</div>
        ${
          name &&
          html`
            <label class="field">
              <span class="label">
                Type <b>${name}</b> to go on; this can't be undone.
              </span>
              <input
                class="input"
                value=${typed}
                onInput=${(event) => setTyped(event.target.value)}
                autocomplete="off"
                spellcheck="false"
              />
            </label>
          `
        }
        <${ErrorBox} error=${error} what="do this" />
      </form>
    <//>
  `;
}

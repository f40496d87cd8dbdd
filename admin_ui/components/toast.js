// Short messages about an action that was done: toast("Key revoked"), toast("…", {tone: "bad"}). Its own action may
// undo it or show its result.

import { html } from "../lib/html.js";
import { Store, useStore } from "../lib/store.js";
import { Icon } from "./icons.js";

const SHOWN_MS = 5000;
const toasts$ = new Store([]);
let last = 0;

/** Show a message for a moment. tone: good, bad or info. action: {label, onClick}, or {label, href}. */
export function toast(text, { tone = "good", action = null } = {}) {
  const id = ++last;
  toasts$.set([...toasts$.value.slice(-2), { id, text, tone, action }]);
  setTimeout(() => dismiss(id), tone === "bad" || action ? 2 * SHOWN_MS : SHOWN_MS);
}

function dismiss(id) {
  toasts$.set(toasts$.value.filter((each) => each.id !== id));
}

export function Toasts() {
  const shown = useStore(toasts$);
  return html`
    <div class="toasts" role="status" aria-live="polite">
      ${shown.map(
        ({ id, text, tone, action }) => html`
          <div class="toast ${tone}" key=${id}>
            <${Icon} name=${tone === "bad" ? "critical" : tone === "info" ? "info" : "check"} />
            <span>${text}</span>
            ${action?.href && html`<a href=${action.href}>${action.label}</a>`}
            ${
              action?.onClick &&
              html`
                <button type="button" class="link" onClick=${() => (dismiss(id), action.onClick())}>
                  ${action.label}
                </button>
              `
            }
            <button
              type="button"
              class="button quiet small icon-only"
              aria-label="Dismiss"
              onClick=${() => dismiss(id)}
            >
              <${Icon} name="close" />
            </button>
          </div>
        `,
      )}
    </div>
  `;
}

// Placeholders for data that is loading, missing or failed to load: Skeleton, Empty, ErrorBox, Notice, and Loaded
// around them.

import { html, useEffect, useState } from "../lib/html.js";
import { CopyButton } from "./button.js";
import { Icon } from "./icons.js";

const PATIENCE_MS = 200;

/** Grey lines, shown after 200 ms of loading. */
export function Skeleton({ lines = 3, height }) {
  const [shown, show] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => show(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, []);
  if (!shown) return html`<div class="skeleton-space" data-lines=${lines} aria-hidden="true"></div>`;
  return html`
    <div class="skeleton" role="status">
      <span class="visually-hidden">Loading</span>
      ${
        height
          ? html`<i class="block" style=${{ height: `${height}px` }}></i>`
          : Array.from({ length: lines }, (_, line) => html`<i key=${line}></i>`)
      }
    </div>
  `;
}

/** The placeholder of an empty list, with the way to fill it: a button as children, or a command to copy. */
export function Empty({ icon = "info", title, children, command, action }) {
  return html`
    <div class="empty">
      <span class="empty-icon">
        <${Icon} name=${icon} size=${20} />
      </span>
      <h3>${title}</h3>
      ${children && html`<p>${children}</p>`}
      ${action}
      ${command && html`<${Command} text=${command} />`}
    </div>
  `;
}

/**
 * A shell command or a piece of code with a copy button. copied: the text to copy, if it differs from the shown one.
 * label: what it is.
 */
export function Command({ text, copied = text, label = "Command" }) {
  return html`
    <div class="command" role="group" aria-label=${label}>
      <pre tabindex="0">
        <code>${text}</code>
      </pre>
      <${CopyButton} text=${copied} what=${label.toLowerCase()} />
    </div>
  `;
}

const ADVICE = {
  0: "Check that the gateway runs and that this machine reaches it, then try again.",
  403: "Ask an owner or an admin of the organization for a role that may do this.",
  404: "It may have been removed, or the address is wrong.",
  503: "The gateway waits for its engine or its database; System shows which.",
};

/** An error: what failed, why, and what to do. what: completes "Could not …". retry: called by the retry button. */
export function ErrorBox({ error, what = "load this", retry }) {
  if (!error) return null;
  const advice =
    ADVICE[error.status] ?? (error.status >= 500 ? "The gateway's log has more under the request's id." : "");
  return html`
    <div class="notice bad" role="alert">
      <${Icon} name="critical" />
      <div>
        <strong>Could not ${what}</strong>
        <p>
          ${error.message} ${advice}
        </p>
        ${
          (retry || error.requestId) &&
          html`
            <p class="notice-actions">
              ${
                retry &&
                html`
                  <button type="button" class="button secondary small" onClick=${retry}>
                    Try again
                  </button>
                `
              }
              ${
                error.requestId &&
                html`
                  <span class="request-id">
                    <code>${error.requestId}</code>
                    <${CopyButton} text=${error.requestId} what="request id" />
                  </span>
                `
              }
            </p>
          `
        }
      </div>
    </div>
  `;
}

/** A notice in a box. tone: info, good, warn or bad. */
export function Notice({ tone = "info", title, children, action }) {
  const icon = { info: "info", good: "check", warn: "alert", bad: "critical" }[tone];
  return html`
    <div class="notice ${tone}" role="note">
      <${Icon} name=${icon} />
      <div>
        ${title && html`<strong>${title}</strong>`}
        ${children && html`<p>${children}</p>`}
      </div>
      ${action && html`<div class="notice-action">${action}</div>`}
    </div>
  `;
}

/** The frame around the result of useApi: children(data) once there is data, before that a skeleton or an error. */
export function Loaded({ from, what, lines = 4, missing, children }) {
  if (from.error?.isMissing && missing) return missing;
  if (from.data === undefined) {
    return from.error
      ? html`<${ErrorBox} error=${from.error} what=${what} retry=${from.reload} />`
      : html`<${Skeleton} lines=${lines} />`;
  }
  return html`
    ${from.error && html`<${ErrorBox} error=${from.error} what=${what} retry=${from.reload} />`}
    ${children(from.data)}
  `;
}

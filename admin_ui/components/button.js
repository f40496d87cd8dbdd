// Buttons, links that look like buttons, and a button that copies a text.

import { copy } from "../lib/clipboard.js";
import { html, useEffect, useState } from "../lib/html.js";
import { Icon } from "./icons.js";

/**
 * A button. kind: primary, secondary, quiet or danger. href: makes a link of it. label: names a button that is an icon
 * alone. busy: shows that its action is under way.
 */
export function Button({ kind = "secondary", icon, label, href, busy = false, small = false, children, ...rest }) {
  const look = `button ${kind} ${small ? "small" : ""} ${children === undefined ? "icon-only" : ""}`;
  const inside = html`
    ${icon && html`<${Icon} name=${icon} />`}
    ${children !== undefined && html`<span>${children}</span>`}
  `;
  if (href)
    return html`
      <a class=${look} href=${href} aria-label=${label} title=${label} ...${rest}>
        ${inside}
      </a>
    `;
  return html`
    <button
      type="button"
      class=${look}
      aria-label=${label}
      title=${label}
      aria-busy=${busy || undefined}
      disabled=${busy}
      ...${rest}
    >
      ${inside}
    </button>
  `;
}

/**
 * A button that copies `text`, and confirms it for a moment. what: completes the button's name, as in "Copy request
 * id".
 */
export function CopyButton({ text, what = "", children, kind = "quiet", small = true }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const name = copied ? "Copied" : `Copy ${what}`.trim();
  return html`
    <${Button}
      kind=${kind}
      small=${small}
      icon=${copied ? "check" : "copy"}
      label=${children === undefined ? name : undefined}
      onClick=${async (event) => {
        event.stopPropagation();
        setCopied(await copy(typeof text === "function" ? text() : text));
      }}
    >
      ${children === undefined ? undefined : copied ? "Copied" : children}
    <//>
  `;
}

/**
 * An id or another short code in a fixed-width font, with a copy button. Codes of more than `max` characters are
 * shortened in the middle.
 */
export function Code({ text, max = 40, what = "" }) {
  const shown = text.length > max ? `${text.slice(0, max / 2)}…${text.slice(-6)}` : text;
  return html`
    <span class="code">
      <code title=${text}>${shown}</code>
      <${CopyButton} text=${text} what=${what} />
    </span>
  `;
}

// Tabs: the views of one object, each with a URL of its own.

import { html, useEffect, useRef } from "../lib/html.js";
import { decode, useLocation } from "../lib/router.js";

/**
 * A row of tabs. tabs: [[title, href, number], …]; number is optional. The tab whose path is shown is the current one.
 */
export function Tabs({ tabs, label = "Views" }) {
  const { path } = useLocation();
  const plain = (href) => decode(href.split("?")[0]).replace(/\/$/, "");
  const element = useRef(null);
  useEffect(() => {
    const { current: bar } = element;
    const tab = bar.querySelector("[aria-current=page]");
    if (tab) bar.scrollLeft = tab.offsetLeft - bar.offsetLeft - (bar.clientWidth - tab.offsetWidth) / 2;
  }, [path, tabs.length]);
  return html`
    <nav class="tabs" ref=${element} aria-label=${label}>
      ${tabs.map(
        ([title, href, number]) => html`
          <a key=${href} href=${href} aria-current=${plain(href) === plain(path) ? "page" : undefined}>
            ${title}
            ${number !== undefined && html`<span class="tab-number">${number}</span>`}
          </a>
        `,
      )}
    </nav>
  `;
}

/** A choice among few, as buttons in a row: options [[value, title], …]. */
export function Choice({ label, value, onValue, options }) {
  return html`
    <div class="choice" role="radiogroup" aria-label=${label}>
      ${options.map(
        ([key, title]) => html`
          <button key=${key} type="button" role="radio" aria-checked=${key === value} onClick=${() => onValue(key)}>
            ${title}
          </button>
        `,
      )}
    </div>
  `;
}

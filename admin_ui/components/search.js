// Search over everything that the reader may see: tenants, keys by their public part, adapters, pools, people, request
// ids.

import { get } from "../lib/api.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { useShortcut } from "../lib/rules/keys.js";
import { navigate } from "../lib/router.js";
import { Dialog } from "./dialog.js";
import { Icon } from "./icons.js";

const WAIT_MS = 120;
/** The kinds of search results: the icon of each, and its name in words. */
const KINDS = {
  page: ["right", ""],
  project: ["tenants", "tenant"],
  api_key: ["keys", "key"],
  adapter: ["adapters", "adapter"],
  experiment: ["experiments", "experiment"],
  pool: ["models", "pool"],
  user: ["user", "person"],
  request: ["requests", "request"],
  refusal: ["shield", "refused request"],
};

/** The search box. places: [title, href, icon] of the views in the rail, which are found as well. */
export function Search({ places }) {
  const [open, setOpen] = useState(false);
  useShortcut("/", "Search", () => setOpen(true));
  return html`
    <button type="button" class="search-button" onClick=${() => setOpen(true)} aria-label="Search">
      <${Icon} name="search" />
      <span>Search</span>
      <kbd>/</kbd>
    </button>
    ${open && html`<${SearchDialog} places=${places} onClose=${() => setOpen(false)} />`}
  `;
}

function SearchDialog({ places, onClose }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [place, setPlace] = useState(0);
  const [failed, setFailed] = useState(null);
  const list = useRef(null);

  useEffect(() => {
    setPlace(0);
    if (!text.trim()) return void setFound([]);
    const leave = new AbortController();
    const timer = setTimeout(() => {
      get("/search", { q: text.trim() }, { signal: leave.signal }).then(
        ({ data }) => (setFound(data), setFailed(null)),
        (error) => error.name !== "AbortError" && (setFound([]), setFailed(error.isMissing ? null : error)),
      );
    }, WAIT_MS);
    return () => (clearTimeout(timer), leave.abort());
  }, [text]);

  const wanted = text.trim().toLowerCase();
  const shown = [
    ...places
      .filter(([title]) => title.toLowerCase().includes(wanted))
      .map(([name, href, icon]) => ({ kind: "page", id: href, name, href, icon })),
    ...found,
  ];
  const go = (entry) => (onClose(), navigate(entry.href));
  const onKeyDown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && shown.length) {
      event.preventDefault();
      const next = (place + step + shown.length) % shown.length;
      setPlace(next);
      list.current?.children[next]?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && shown[place]) {
      event.preventDefault();
      go(shown[place]);
    }
  };
  return html`
    <${Dialog} title="Search" onClose=${onClose}>
      <div class="search">
        <input
          class="input"
          type="search"
          role="combobox"
          aria-label="Search"
          aria-expanded="true"
          aria-controls="search-found"
          aria-activedescendant=${shown.length ? `found-${place}` : undefined}
          placeholder="Tenants, keys, adapters, experiments, pools, people, request ids"
          autocomplete="off"
          spellcheck="false"
          autofocus
          value=${text}
          onInput=${(event) => setText(event.target.value)}
          onKeyDown=${onKeyDown}
        />
        <ul class="search-found" id="search-found" role="listbox" aria-label="Found" ref=${list}>
          ${shown.map(
            (entry, number) => html`
              <li
                key="${entry.kind} ${entry.id}"
                id="found-${number}"
                role="option"
                aria-selected=${number === place}
                onPointerMove=${() => setPlace(number)}
                onClick=${() => go(entry)}
              >
                <${Icon} name=${entry.icon ?? KINDS[entry.kind]?.[0] ?? "right"} />
                <span class="ellipsis">${entry.name}</span>
                <small>${KINDS[entry.kind]?.[1] ?? entry.kind}</small>
              </li>
            `,
          )}
        </ul>
        ${
          wanted &&
          shown.length === 0 &&
          html`<p class="hint">${failed ? failed.message : `Nothing found for “${text.trim()}”.`}</p>`
        }
      </div>
    <//>
  `;
}

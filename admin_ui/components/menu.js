// A button that opens a list of actions or links. Arrow keys walk through it, Escape and a click elsewhere close it.

import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { Icon } from "./icons.js";

/**
 * items: {title, hint, icon, href | onClick, danger, checked} or null for a line. button: what the button shows. look:
 * its class. align: "end" opens towards the left. up: it opens upwards.
 */
export function Menu({ button, label, items, look = "button quiet", align = "start", up = false, children }) {
  const [open, setOpen] = useState(false);
  const root = useRef(null);
  const id = useId();
  const entries = () => [...root.current.querySelectorAll("[role^=menuitem]")];

  useEffect(() => {
    if (!open) return undefined;
    entries()[0]?.focus();
    const outside = (event) => !root.current?.contains(event.target) && setOpen(false);
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, [open]);

  const close = () => {
    setOpen(false);
    root.current.querySelector("button")?.focus();
  };
  const onKeyDown = (event) => {
    if (!open) return;
    const list = entries();
    const place = list.indexOf(document.activeElement);
    const next = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: list.length - 1 }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      list[(next + list.length) % list.length]?.focus();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Tab") {
      setOpen(false);
    }
  };
  const entry = (item, place) => {
    if (item === null) return html`<div class="menu-line" role="separator" key=${place}></div>`;
    const role = item.checked === undefined ? "menuitem" : "menuitemradio";
    const props = { key: place, role, tabindex: -1, class: `menu-item ${item.danger ? "danger" : ""}`, "aria-checked": item.checked === undefined ? undefined : String(item.checked) };
    const inside = html`${item.icon && html`<${Icon} name=${item.icon} />`}<span class="menu-title">${item.title}${item.hint && html`<small>${item.hint}</small>`}</span>${item.checked && html`<${Icon} name="check" />`}`;
    if (item.href) return html`<a ...${props} href=${item.href} onClick=${() => setOpen(false)}>${inside}</a>`;
    return html`<button type="button" ...${props} onClick=${() => (close(), item.onClick())}>${inside}</button>`;
  };
  return html`<div class="menu" ref=${root} onKeyDown=${onKeyDown}>
    <button type="button" class=${look} aria-label=${label} title=${label} aria-haspopup="menu" aria-expanded=${open} aria-controls=${open ? id : undefined} onClick=${() => setOpen(!open)}>${button}</button>
    ${open && html`<div class="menu-list ${align} ${up ? "up" : ""}" role="menu" id=${id} aria-label=${label}>${children}${items.map(entry)}</div>`}
  </div>`;
}

// A button that opens a list of actions or links. Arrow keys walk through it, Escape and a click elsewhere close it.

import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { Icon } from "./icons.js";

const GAP_PX = 6;
const EDGE_PX = 8;

/**
 * A button with a menu. items: {title, hint, icon, href | onClick, danger, checked, isHere}, or null for a separator.
 * button: the content of the button. look: the class of the button. align: "end" opens the menu towards the left.
 * isHere: the current page is one of the items, the one with isHere. up: the menu opens upwards.
 */
export function Menu({
  button,
  label,
  items,
  look = "button quiet",
  align = "start",
  up = false,
  isHere = false,
  children,
}) {
  const [open, setOpen] = useState(false);
  const root = useRef(null);
  const id = useId();
  const entries = () => [...root.current.querySelectorAll("[role^=menuitem]")];

  // In the top layer, so that no box which scrolls cuts it off; it stays beside its button.
  useLayoutEffect(() => {
    if (!open) return undefined;
    const list = root.current.querySelector("[role=menu]");
    const place = () => beside(root.current.querySelector("button"), list, align === "end", up);
    list.showPopover();
    place();
    window.addEventListener("scroll", place, true);
    window.addEventListener("resize", place);
    return () => {
      window.removeEventListener("scroll", place, true);
      window.removeEventListener("resize", place);
    };
  }, [open]);

  useEffect(() => {
    if (!open) return undefined;
    entries()[0]?.focus({ preventScroll: true });
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
    const props = {
      key: place,
      role,
      tabindex: -1,
      class: `menu-item ${item.danger ? "danger" : ""}`,
      "aria-checked": item.checked === undefined ? undefined : String(item.checked),
      "aria-current": item.isHere ? "page" : undefined,
    };
    const inside = html`
      ${item.icon && html`<${Icon} name=${item.icon} />`}
      <span class="menu-title" title=${item.title}>
        ${item.title}
        ${item.hint && html`<small>${item.hint}</small>`}
      </span>
      ${item.checked && html`<${Icon} name="check" />`}
    `;
    if (item.href)
      return html`
        <a ...${props} href=${item.href} onClick=${() => setOpen(false)}>
          ${inside}
        </a>
      `;
    return html`
      <button type="button" ...${props} onClick=${() => (close(), item.onClick())}>
        ${inside}
      </button>
    `;
  };
  return html`
    <div class="menu" ref=${root} onKeyDown=${onKeyDown}>
      <button
        type="button"
        class=${look}
        aria-label=${label}
        title=${label}
        aria-current=${isHere || undefined}
        aria-haspopup="menu"
        aria-expanded=${open}
        aria-controls=${open ? id : undefined}
        onClick=${() => setOpen(!open)}
      >
        ${button}
      </button>
      ${
        open &&
        html`
          <div class="menu-list" popover="manual" role="menu" id=${id} aria-label=${label}>
            ${children}
            ${items.map(entry)}
          </div>
        `
      }
    </div>
  `;
}

function beside(button, list, isEnd, isUp) {
  const at = button.getBoundingClientRect();
  const { width, height } = list.getBoundingClientRect();
  const left = isEnd ? at.right - width : at.left;
  const goesUp = isUp || (at.bottom + GAP_PX + height > window.innerHeight && at.top > height);
  list.style.left = `${Math.max(EDGE_PX, Math.min(left, window.innerWidth - width - EDGE_PX))}px`;
  list.style.top = `${goesUp ? at.top - GAP_PX - height : at.bottom + GAP_PX}px`;
}

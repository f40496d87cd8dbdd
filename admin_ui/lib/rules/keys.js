// Keyboard shortcuts: single keys and pairs such as "g t". None acts while the reader types, or in a dialog.

import { useEffect } from "../html.js";

const PAIR_MS = 1200;
const shortcuts = new Map();
let first = null;

/** Call the handler at keys such as "?" or "g t" while the component is mounted. title: the text in the help. */
export function useShortcut(keys, title, handler) {
  useEffect(() => {
    const shortcut = { title, handler };
    shortcuts.set(keys, shortcut);
    return () => shortcuts.get(keys) === shortcut && shortcuts.delete(keys);
  });
}

/** Return [keys, title] of all active shortcuts. */
export function shortcutList() {
  return [...shortcuts].map(([keys, { title }]) => [keys, title]);
}

function isTyping(target) {
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    shortcuts.get("/")?.handler();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  const pair = first && event.timeStamp - first.at < PAIR_MS ? `${first.key} ${event.key}` : "";
  first = null;
  const shortcut = shortcuts.get(pair) ?? shortcuts.get(event.key);
  if (shortcut) {
    event.preventDefault();
    shortcut.handler();
  } else {
    first = { key: event.key, at: event.timeStamp };
  }
});

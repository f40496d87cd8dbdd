// The question that is asked before a view with unsaved work is left: by a link, by going back or forward, or by
// closing the tab.

import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { setGuard } from "../lib/router.js";
import { Confirm } from "./dialog.js";

/**
 * Ask before the reader leaves unsaved work. isNeeded: whether there is any. Returns {question, free, isFree}: question
 * is the dialog to render; free() lets the reader leave without being asked, since the work was saved; isFree() tells
 * whether free() was called.
 */
export function useLeaving(isNeeded, { title = "Leave without saving?", verb = "Leave", children }) {
  const [go, setGo] = useState(null);
  const isFree = useRef(false);
  const held = useRef(false);
  held.current = isNeeded && !isFree.current;
  useLayoutEffect(() => {
    const ask = (proceed) => held.current && (setGo(() => proceed), true);
    const free = setGuard(ask);
    const onUnload = (event) => held.current && event.preventDefault();
    const onNavigate = (event) => {
      if (
        event.navigationType !== "traverse" ||
        !event.cancelable ||
        event.defaultPrevented ||
        isHere(event.destination)
      )
        return;
      const { key } = event.destination;
      if (ask(() => window.navigation.traverseTo(key))) event.preventDefault();
    };
    window.addEventListener("beforeunload", onUnload);
    window.navigation?.addEventListener("navigate", onNavigate);
    return () => {
      free();
      window.removeEventListener("beforeunload", onUnload);
      window.navigation?.removeEventListener("navigate", onNavigate);
    };
  }, []);
  const free = () => {
    isFree.current = true;
    held.current = false;
  };
  const question =
    go &&
    html`
      <${Confirm}
        title=${title}
        verb=${verb}
        danger=${false}
        onClose=${() => setGo(null)}
        act=${async () => (free(), void setTimeout(go))}
      >
        ${children}
      <//>
    `;
  return { question, free, isFree: () => isFree.current };
}

const isHere = ({ url }) => new URL(url).pathname === window.location.pathname;

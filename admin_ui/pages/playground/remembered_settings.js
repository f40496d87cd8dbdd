// Keeps the playground's models and numbers, as they are in its URL, for the next visit within this tab. Messages are
// not kept.

import { useLayoutEffect } from "../../lib/html.js";
import { setQuery, useLocation } from "../../lib/router.js";
import { session$ } from "../../lib/session.js";

const KEY = "lorikeet.playground";
const NAMES = ["model", "with", "api", "store", "temperature", "top_p", "max_tokens", "seed", "stop"];

session$.watch(({ state }) => state === "out" && sessionStorage.removeItem(KEY));

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

/** Restore the last settings of this tenant's playground if the URL has none; else store those of the URL. */
export function useRememberedSettings(projectId) {
  const { query } = useLocation();
  const said = Object.fromEntries(NAMES.filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  const text = JSON.stringify(said);
  useLayoutEffect(() => {
    if (text === "{}") setQuery(read()[projectId ?? ""] ?? {});
  }, [projectId]);
  useLayoutEffect(() => {
    // What the location is by now: the effect above may just have changed it.
    const now = new URLSearchParams(window.location.search);
    const kept = Object.fromEntries(NAMES.filter((name) => now.has(name)).map((name) => [name, now.get(name)]));
    sessionStorage.setItem(KEY, JSON.stringify({ ...read(), [projectId ?? ""]: kept }));
  }, [projectId, text]);
}

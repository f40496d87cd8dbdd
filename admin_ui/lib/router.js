// The router: path and query of the URL, by the history API. Every view and every state of a view is a URL.
//
// Links are plain <a href="/admin/...">: clicks on them are handled here, and they can also be opened in a new tab.

import { Store, useStore } from "./store.js";

export const ROOT = "/admin/";
/**
 * Values of the query that stay from view to view, unless a link sets one of the group: the time range, and the
 * project.
 */
const STICKY = [["range", "from", "to"], ["project"]];

export const location$ = new Store(read());

function read() {
  return { path: decodePath(window.location.pathname), query: new URLSearchParams(window.location.search) };
}

function decodePath(path) {
  return path.startsWith(ROOT) ? path : ROOT;
}

export function useLocation() {
  return useStore(location$);
}

/**
 * Return one value of the query as [value, set]: `const [q, setQ] = useQuery("q", "")`. The default is left out of the
 * URL.
 */
export function useQuery(name, fallback = "") {
  const { query } = useLocation();
  const value = query.get(name) ?? fallback;
  return [value, (next) => setQuery({ [name]: next === fallback ? null : next })];
}

/**
 * The function that is called before the reader goes to another path. ask(go) returns true if it will call go later, or
 * not at all.
 */
let guard = null;

/** Set the guard; return a function that removes it. */
export function setGuard(ask) {
  guard = ask;
  return () => {
    if (guard === ask) guard = null;
  };
}

/**
 * Go to a path of the dashboard (with or without query). replace: without a new entry in the history, and without
 * calling the guard.
 */
export function navigate(href, { replace = false } = {}) {
  const url = withSticky(new URL(href, window.location.href));
  const before = window.location.pathname;
  if (!replace && before !== url.pathname && guard?.(() => navigate(href))) return;
  window.history[replace ? "replaceState" : "pushState"]({}, "", url);
  location$.set(read());
  if (before !== url.pathname) {
    window.scrollTo(0, 0);
    requestAnimationFrame(() => document.getElementById("main")?.focus({ preventScroll: true }));
  }
}

/**
 * Change values of the query; null removes a value. The history's entry is replaced, so that going back leaves the
 * view. push: add an entry instead.
 */
export function setQuery(changes, { push = false } = {}) {
  const url = new URL(window.location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, String(value));
  }
  window.history[push ? "pushState" : "replaceState"]({}, "", url);
  location$.set(read());
}

/** Return a link to this view with other values in its query; null removes a value. */
export function here(changes) {
  const { path, query } = location$.value;
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) value === null ? next.delete(name) : next.set(name, value);
  return `${path}?${next}`;
}

/** Return a path of the dashboard, with encoded segments: `to("tenants", id, "keys")`. */
export function to(...segments) {
  return ROOT + segments.map(encodeURIComponent).join("/");
}

function withSticky(url) {
  const now = new URLSearchParams(window.location.search);
  for (const group of STICKY) {
    if (group.some((name) => url.searchParams.has(name))) continue;
    for (const name of group) if (now.has(name)) url.searchParams.set(name, now.get(name));
  }
  return url;
}

/**
 * Return the route of a path in a table of routes, as {route, params}, or null. Patterns are like
 * "tenants/:project/keys"; the first that fits counts. route.pattern is relative to the root.
 */
export function match(routes, path) {
  const segments = path.slice(ROOT.length).split("/").filter(Boolean);
  for (const route of routes) {
    const wanted = route.pattern.split("/").filter(Boolean);
    if (wanted.length !== segments.length) continue;
    const params = {};
    const fits = wanted.every((part, place) => {
      if (!part.startsWith(":")) return part === segments[place];
      params[part.slice(1)] = decode(segments[place]);
      return true;
    });
    if (fits) return { route, params };
  }
  return null;
}

/** Return a segment of a path decoded; unchanged if it is not encoded correctly. */
export function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

window.addEventListener("popstate", () => location$.set(read()));

document.addEventListener("click", (event) => {
  const link = event.target instanceof Element && event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.target || link.hasAttribute("download") || link.origin !== window.location.origin) return;
  if (!link.pathname.startsWith(ROOT) || link.pathname.startsWith(`${ROOT}v1/`)) return;
  event.preventDefault();
  navigate(link.href);
});

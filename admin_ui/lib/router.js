// Where the reader is: path and query of the URL, over the history API. Every view and every state of a view is a URL.
//
// Links are plain <a href="/admin/...">: clicks on them are taken here, so that they can be opened in a new tab as
// well.

import { Store, useStore } from "./store.js";

export const ROOT = "/admin/";
/** Kept from view to view, each group unless a link says otherwise: the time range, the project that is looked at. */
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

/** One value of the query, as [value, set]: `const [q, setQ] = useQuery("q", "")`. Its default is not written. */
export function useQuery(name, fallback = "") {
  const { query } = useLocation();
  const value = query.get(name) ?? fallback;
  return [value, (next) => setQuery({ [name]: next === fallback ? null : next })];
}

/**
 * What is asked before the reader goes to another path: ask(go) returns true where it will call go later, if at all.
 */
let guard = null;

/** Returns what takes the guard away again. */
export function setGuard(ask) {
  guard = ask;
  return () => {
    if (guard === ask) guard = null;
  };
}

/**
 * Go to a path of the dashboard (with or without query). replace: without an entry in the history, and without a
 * question.
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

/** Change values of the query; null removes one. It replaces the history's entry: going back leaves the view. */
export function setQuery(changes, { push = false } = {}) {
  const url = new URL(window.location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, String(value));
  }
  window.history[push ? "pushState" : "replaceState"]({}, "", url);
  location$.set(read());
}

/** A link to this view with other values in its query; null removes one. */
export function here(changes) {
  const { path, query } = location$.value;
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) value === null ? next.delete(name) : next.set(name, value);
  return `${path}?${next}`;
}

/** A path of the dashboard: segments are encoded. `to("tenants", id, "keys")` */
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
 * What a table of routes has for a path: {route, params}, or null. Patterns are like "tenants/:project/keys"; the first
 * that fits counts. route.pattern is relative to the root.
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

/** A part of a path as it was before `to` encoded it; as it is, where it is no such. */
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

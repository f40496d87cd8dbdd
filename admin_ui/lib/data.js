// Hooks that read the admin API. Data that was read before is shown at once and read again; leaving a view aborts its
// requests.

import { ApiError, get, pages, urlOf } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";

const MAX_KEPT = 200;
const kept = new Map();
const readers = new Set();

function keep(url, data) {
  kept.delete(url);
  kept.set(url, data);
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
}

/** Read all shown data below these paths again, after a change: `invalidate("/projects")`. */
export function invalidate(...paths) {
  const bases = paths.map((path) => urlOf(path));
  const hit = (url) => bases.some((base) => url.startsWith(base));
  for (const url of [...kept.keys()]) if (hit(url)) kept.delete(url);
  for (const reader of [...readers]) if (hit(reader.url)) reader.reload();
}

export function forgetAll() {
  kept.clear();
}

/**
 * Read one object; return {data, error, loading, reload}. path null or empty: nothing is requested. While the same path
 * loads with another query, the former data stays; it is dropped if that fails, unless only the time moved on. every:
 * milliseconds between two reads. read(path, query, {signal}): takes the place of one GET.
 */
export function useApi(path, query = {}, { every = 0, read = get } = {}) {
  const isAsked = Boolean(path);
  const url = isAsked ? urlOf(path, query) + (read === get ? "" : `#${read.name}`) : null;
  const about = isAsked ? urlOf(path, { ...query, start_time: null, end_time: null }) : null;
  const [state, setState] = useState(() => ({
    path,
    about,
    data: url ? kept.get(url) : undefined,
    error: null,
    loading: !!url,
  }));
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((round) => round + 1), []);

  useEffect(() => {
    if (!url) {
      setState({ path, about, data: undefined, error: null, loading: false });
      return undefined;
    }
    const leave = new AbortController();
    const reader = { url, reload };
    readers.add(reader);
    setState((was) => ({
      path,
      about: kept.has(url) ? about : was.about,
      data: kept.get(url) ?? (was.path === path ? was.data : undefined),
      error: was.about === about ? was.error : null,
      loading: true,
    }));
    read(path, query, { signal: leave.signal }).then(
      (data) => {
        keep(url, data);
        if (!leave.signal.aborted) setState({ path, about, data, error: null, loading: false });
      },
      (error) => {
        if (error.name === "AbortError" || leave.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        setState((was) => ({
          path,
          about,
          data: error.isMissing || was.about !== about ? undefined : was.data,
          error,
          loading: false,
        }));
      },
    );
    return () => {
      readers.delete(reader);
      leave.abort();
    };
  }, [url, round]);

  useEffect(() => {
    if (!every || !url) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && reload(), every);
    return () => clearInterval(timer);
  }, [every, url]);

  return state.path === path ? { ...state, reload } : { data: undefined, error: null, loading: isAsked, reload };
}

/**
 * Read a whole list, page after page; return {data: items, error, loading, reload}. For lists that people fill one by
 * one; others are read in pages.
 */
export function useAll(path, query = {}, options = {}) {
  return useApi(path, query, { ...options, read: readAll });
}

async function readAll(path, query, options) {
  const found = [];
  for await (const item of pages(path, query, options)) found.push(item);
  return found;
}

/**
 * Read a list in OpenAI's shape; return {items, error, loading, hasMore, more, reload}. `more()` adds the next page.
 */
export function useList(path, query = {}, { limit = 50 } = {}) {
  const first = useApi(path, { limit, ...query });
  const [rest, setRest] = useState({ of: null, items: [], last: null, hasMore: false, error: null, loading: false });
  const current = useRef(null);
  current.current = first.data;
  const isSame = rest.of !== null && rest.of === first.data;

  const more = useCallback(async () => {
    const of = current.current;
    const after = isSame ? rest.last : of.last_id;
    setRest((was) => ({ ...(was.of === of ? was : { items: [] }), of, loading: true, error: null }));
    try {
      const page = await get(path, { limit, ...query, after });
      setRest((was) => ({
        of,
        items: [...was.items, ...page.data],
        last: page.last_id,
        hasMore: page.has_more,
        error: null,
        loading: false,
      }));
    } catch (error) {
      setRest((was) => ({ ...was, last: after, hasMore: true, error, loading: false }));
    }
  }, [isSame, rest.last, path, JSON.stringify(query), limit]);

  return {
    items: first.data ? [...first.data.data, ...(isSame ? rest.items : [])] : undefined,
    error: first.error ?? (isSame ? rest.error : null),
    loading: first.loading || (isSame && rest.loading),
    hasMore: isSame ? rest.hasMore : (first.data?.has_more ?? false),
    more,
    reload: first.reload,
  };
}

// The latest requests, read again every few seconds; it stands still while somebody looks at a row of it.

import { useList } from "../../lib/data.js";
import { useEffect, useRef, useState } from "../../lib/html.js";
import { useLiveState } from "../../lib/live.js";
import { useLocation } from "../../lib/router.js";
import { useRange } from "../../lib/format/time.js";
import { FILTERS, apiQuery } from "./query.js";

const EVERY_MS = 4000;
const PAGE = 50;
export const MAX_WINDOW_S = 92 * 86400;

/**
 * Return {list, filters, state, hold}: list as useList returns it; state "live", "held" (by the pointer or by further
 * pages) or "paused"; hold: the props of the element that holds the list while the pointer is over it.
 */
export function useLiveRequests(projectId) {
  const { query } = useLocation();
  const live = useLiveState();
  const [isOver, setOver] = useState(false);
  const range = useRange();
  const isFixed = range.name === "";
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  filters.project = projectId ?? "";

  // A relative range goes on with the clock: not under the pointer, and not below pages that were asked for.
  const [hasMorePages, setMorePages] = useState(false);
  const isHeld = isOver || hasMorePages;
  const kept = useRef(range.start);
  if (!isHeld) kept.current = range.start;
  const start = Math.max(isFixed ? range.start : kept.current, range.end - MAX_WINDOW_S);
  const asked = { ...apiQuery(filters), start_time: start, ...(isFixed && { end_time: range.end }) };
  const list = useList("/requests", asked, { limit: PAGE });
  const question = JSON.stringify([filters, range.name, isFixed && [range.start, range.end]]);
  useEffect(() => setMorePages(false), [question]);

  const isLive = live !== "paused" && !isHeld && !isFixed;
  useEffect(() => {
    if (!isLive) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && list.reload(), EVERY_MS);
    return () => clearInterval(timer);
  }, [isLive]);

  const more = () => {
    setMorePages(true);
    return list.more();
  };
  const back = () => {
    setMorePages(false);
    list.reload();
  };
  const hold = { onPointerEnter: () => setOver(true), onPointerLeave: () => setOver(false) };
  const state = live === "paused" ? "paused" : isFixed ? "fixed" : hasMorePages ? "pages" : isOver ? "held" : "live";
  return { list: { ...list, more }, filters, state, hold, back };
}

// The data of the explorer: the busiest tenants, models, adapters or keys, filtered, and their usage over time beside
// all others.

import { column, summed, useBuckets } from "../../../lib/buckets.js";
import { coloursOf } from "../../../lib/colours.js";
import { useApi } from "../../../lib/data.js";
import { useMemo } from "../../../lib/html.js";
import { useLocation } from "../../../lib/router.js";

export const MAX_ROWS = 100;
const NUM_SERIES = 7;

/** The groups of traffic: [group_by, title, its filter in the URL, its list in the API]. */
export const GROUPS = [
  ["project_id", "Tenant", "project", "project_ids"],
  ["model", "Model", "model", "models"],
  ["adapter_id", "Adapter", "adapter", "adapter_ids"],
  ["api_key_id", "Key", "key", "api_key_ids"],
];

/** The measures of traffic: [name, title, unit, the number of a result or row]. */
export const MEASURES = [
  ["cost", "Cost", "money", (row) => row.cost_nanos ?? 0],
  ["tokens", "Tokens", "tokens", (row) => (row.input_tokens ?? 0) + (row.output_tokens ?? 0)],
  ["requests", "Requests", "count", (row) => row.num_requests ?? 0],
  ["errors", "Failed", "count", (row) => row.num_errors ?? 0],
];

export const groupOf = (name) => GROUPS.find(([group]) => group === name) ?? GROUPS[0];
export const measureOf = (name) => MEASURES.find(([measure]) => measure === name) ?? MEASURES[0];

/** Return the filters {project, model, adapter, key} of the URL; project is the current project. */
export function useFilters(projectId) {
  const { query } = useLocation();
  const filters = Object.fromEntries(GROUPS.map(([, , name]) => [name, query.get(name) ?? ""]));
  return { ...filters, project: projectId ?? "" };
}

const lists = (filters) =>
  Object.fromEntries(GROUPS.filter(([, , name]) => filters[name]).map(([, , name, list]) => [list, [filters[name]]]));

/** Return the name of an adapter, a key or a model, as the traffic API has it. */
export function useNameOf([group, , , list], id, range) {
  const { data } = useApi("/traffic/top", {
    by: group,
    start_time: range.start,
    end_time: range.end,
    limit: 1,
    times: false,
    [list]: [id],
  });
  return data?.data[0]?.name ?? id;
}

/**
 * Return {top, times, series, error}. top: the rows of the busiest; series: those of the first rows, and of all others
 * together.
 */
export function useExplored({ group, measure, filters, range }) {
  const narrowed = lists(filters);
  const [name, , , value] = measureOf(measure);
  const [, , , list] = groupOf(group);
  const top = useApi("/traffic/top", {
    by: group,
    order: name,
    start_time: range.start,
    end_time: range.end,
    limit: MAX_ROWS,
    times: false,
    ...narrowed,
  });
  const rows = top.data?.data;
  const first = useMemo(() => (rows ?? []).filter(({ id }) => id !== "").slice(0, NUM_SERIES), [rows]);
  const all = useBuckets("/traffic", range, { ...narrowed, times: false });
  const each = useBuckets(first.length ? "/traffic" : null, range, {
    ...narrowed,
    [list]: first.map(({ id }) => id),
    group_by: [group],
    times: false,
  });
  const drawn = useMemo(
    () =>
      all.data && (each.data || !first.length) && rows
        ? seriesOf(all.data, each.data ?? [], first, group, value, rows.length > first.length)
        : null,
    [all.data, each.data, first, measure],
  );
  return { top, rows, error: top.error ?? all.error ?? each.error, sums: all.data && summed(all.data), ...drawn };
}

function seriesOf(all, each, first, group, value, hasOthers) {
  const totals = summed(all).map((row) => ({ at: row.at, value: value(row) }));
  const found = new Map(each.map(({ start_time: at, results }) => [at, results]));
  const colours = coloursOf(first.map(({ id }) => id));
  const series = first.map(({ id, name }, place) => ({
    key: id,
    label: name,
    color: colours[place],
    values: totals.map(({ at }) =>
      (found.get(at) ?? []).filter((result) => result[group] === id).reduce((sum, result) => sum + value(result), 0),
    ),
  }));
  const known = totals.map((_, place) => series.reduce((sum, { values }) => sum + values[place], 0));
  const rest = totals.map((row, place) => Math.max(0, row.value - known[place]));
  const others = { key: "others", label: "All others", color: "var(--text-3)", values: rest };
  return { times: column(totals, "at"), series: hasOthers && rest.some(Boolean) ? [...series, others] : series };
}

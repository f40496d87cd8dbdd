// The hooks that read the adapters of one project, or of all that the reader sees, their traffic, and the engines that
// have them loaded.

import { useApi, useList } from "../../lib/data.js";
import { pathOf } from "../../lib/projects_api.js";
import { can, canSomewhere } from "../../lib/session.js";

/** Return the adapters as useList does, each with the id of its project. */
export function useAdapters(projectId) {
  const list = useList(projectId ? pathOf(projectId, "/adapters") : "/adapters", {}, { limit: 100 });
  return { ...list, items: list.items?.map((adapter) => ({ project_id: projectId, ...adapter })) };
}

const MAX_TOP = 100;
const NONE = { num_requests: 0, num_errors: 0 };

/**
 * Return traffic(adapter id), the adapter's row of GET /traffic/top in a range: null if MAX_TOP others are busier.
 * Returns null until the rows have come.
 */
export function useTraffic(range) {
  const may = canSomewhere("billing.read");
  const top = useApi(may ? "/traffic/top" : null, {
    by: "adapter_id",
    order: "requests",
    start_time: range.start,
    end_time: range.end,
    limit: MAX_TOP,
    times: false,
  });
  const rows = top.data?.data;
  return rows ? (id) => rows.find((row) => row.id === id) ?? (rows.length < MAX_TOP ? NONE : null) : null;
}

/** Return loaded(adapter id), the engines that hold an adapter; null for readers who may not see the engines. */
export function useResidency() {
  const engines = useApi(can("organization.read") ? "/engines" : null, {}, { every: 10_000 });
  const list = engines.data?.data;
  return list
    ? (id) => list.filter(({ resident_adapters: resident }) => resident.some(({ adapter_id: each }) => each === id))
    : null;
}

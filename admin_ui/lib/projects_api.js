// What views of one project share: its path in the API, what may be done to it, the currency of its money.

import { useApi } from "./data.js";
import { can } from "./session.js";
import { now } from "./format/time.js";

const DAY_S = 86_400;

export const pathOf = (projectId, rest = "") => `/projects/${encodeURIComponent(projectId)}${rest}`;

/** may(permission): whether the reader may do it to this project; nothing can be changed in an archived one. */
export function mayIn(projectId, project) {
  return (permission) =>
    can(permission, projectId) && (permission.endsWith(".read") || (!!project && project.status !== "archived"));
}

/**
 * What the project, or with null all of them, has cost since the first of the month in UTC, as the ledger's sums have
 * it: {nanos, currency, loading}.
 */
export function useMonthlyCost(projectId) {
  const today = Math.floor(now() / DAY_S) * DAY_S;
  const first = Date.UTC(new Date(now() * 1000).getUTCFullYear(), new Date(now() * 1000).getUTCMonth(), 1) / 1000;
  const query = {
    start_time: first,
    end_time: today + DAY_S,
    bucket_width: "1d",
    limit: 31,
    project_ids: projectId ? [projectId] : null,
  };
  const { data, loading } = useApi(can("billing.read", projectId) ? "/costs" : null, query);
  const results = (data?.data ?? []).flatMap((bucket) => bucket.results);
  return {
    nanos: data && results.reduce((sum, { amount }) => sum + amount.value_nanos, 0),
    currency: results[0]?.amount.currency ?? "usd",
    loading,
  };
}

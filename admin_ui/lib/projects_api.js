// Functions that views of one project share: its path in the API, the reader's permissions in it, its currency.

import { useApi } from "./data.js";
import { can } from "./session.js";
import { now } from "./format/time.js";

const DAY_S = 86_400;

export const pathOf = (projectId, rest = "") => `/projects/${encodeURIComponent(projectId)}${rest}`;

/**
 * Return may(permission), which tells whether the reader has a permission in this project; an archived one cannot be
 * changed.
 */
export function mayIn(projectId, project) {
  return (permission) =>
    can(permission, projectId) && (permission.endsWith(".read") || (!!project && project.status !== "archived"));
}

/**
 * Return what the project, or with null all projects, has cost since the first of the month in UTC by the ledger's
 * sums: {nanos, currency, loading}.
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

// Numbers by bucket of time, as GET /traffic and the usage routes answer: read to the last page, and put into columns.

import { ApiError, get, urlOf } from "./api.js";
import { useCallback, useEffect, useState } from "./html.js";
import { useWhileTraffic } from "./live.js";
import { BUCKET_S } from "./format/time.js";

const MAX_BUCKETS = { "1m": 1440, "1h": 168, "1d": 31 };

/**
 * Return {data: buckets, error, loading, reload} of a range of `useRange`. path null: nothing is requested. While the
 * range moves on with time, or if that fails, data stays; when the path, the query or the chosen range changes, data is
 * undefined until the new data has come.
 */
export function useBuckets(path, range, query = {}) {
  const asked = {
    start_time: range.start,
    end_time: range.end,
    bucket_width: range.bucket,
    limit: Math.min(MAX_BUCKETS[range.bucket], Math.ceil((range.end - range.start) / BUCKET_S[range.bucket])),
    ...query,
  };
  const key = path && urlOf(path, asked);
  const about = path && `${urlOf(path, query)} ${range.label}`;
  const [state, setState] = useState({ about, data: undefined, error: null, loading: true });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((round) => round + 1), []);
  useWhileTraffic(useCallback(() => range.name !== "" && reload(), [range.name]));
  useEffect(() => {
    if (!path) return void setState({ about, data: undefined, error: null, loading: false });
    const leave = new AbortController();
    setState((was) =>
      was.about === about ? { ...was, loading: true } : { about, data: undefined, error: null, loading: true },
    );
    readAll(path, asked, leave.signal).then(
      (data) => !leave.signal.aborted && setState({ about, data, error: null, loading: false }),
      (error) => {
        if (leave.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        setState((was) => ({ about, data: error.isMissing ? undefined : was.data, error, loading: false }));
      },
    );
    return () => leave.abort();
  }, [key, about, round]);
  return state.about === about
    ? { ...state, reload }
    : { data: undefined, error: null, loading: path !== null, reload };
}

async function readAll(path, query, signal) {
  const buckets = [];
  let page = null;
  do {
    const answer = await get(path, { ...query, page }, { signal });
    buckets.push(...answer.data);
    page = answer.has_more ? answer.next_page : null;
  } while (page !== null);
  return buckets;
}

/** Return each bucket's results as one row of sums, with the percentiles of its first result: {at, ...numbers}. */
export function summed(buckets) {
  return buckets.map(({ start_time: at, results }) => {
    const row = { at };
    for (const result of results) {
      for (const [name, value] of Object.entries(result)) {
        if (typeof value === "number") row[name] = (row[name] ?? 0) + value;
        else row[name] ??= value;
      }
    }
    return row;
  });
}

/** Return one number of all rows, 0 where a bucket has none. */
export const column = (rows, name) => rows.map((row) => row[name] ?? 0);

export const sumOf = (rows, name) => rows.reduce((sum, row) => sum + (row[name] ?? 0), 0);

/** Return the number of requests of a row that were completed. */
export const numCompleted = (row) =>
  (row.num_requests ?? 0) - (row.num_errors ?? 0) - (row.num_cancelled ?? 0) - (row.num_refused ?? 0);

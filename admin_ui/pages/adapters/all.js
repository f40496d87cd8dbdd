// The adapters of one project or of all the reader sees, each with the project it is of.

import { ApiError, pages } from "../../lib/api.js";
import { useApi } from "../../lib/data.js";
import { useCallback, useEffect, useState } from "../../lib/html.js";
import { useProjects } from "../../lib/projects.js";
import { can, canSomewhere } from "../../lib/session.js";

const MAX_PROJECTS = 200;

/** {items, error, loading, reload, isPartial}: items undefined until they have come. */
export function useAdapters(projectId) {
  const projects = useProjects();
  const [state, setState] = useState({ items: undefined, error: null, loading: true });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((round) => round + 1), []);
  const seen = projects?.filter(({ id, status }) => (projectId ? id === projectId : status !== "archived") && can("adapters.read", id));
  const ids = projectId && projects === null ? projectId : seen?.map(({ id }) => id).slice(0, MAX_PROJECTS).join(" ");
  useEffect(() => {
    if (ids === undefined) return undefined;
    const leave = new AbortController();
    setState((was) => ({ ...was, loading: true }));
    Promise.all(ids.split(" ").filter(Boolean).map((id) => ofProject(id, leave.signal))).then(
      (lists) => setState({ items: lists.flat(), error: null, loading: false }),
      (error) => {
        if (leave.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        setState((was) => ({ ...was, error, loading: false }));
      },
    );
    return () => leave.abort();
  }, [ids, round]);
  return { ...state, reload, isPartial: (seen?.length ?? 0) > MAX_PROJECTS };
}

async function ofProject(id, signal) {
  const found = [];
  for await (const adapter of pages(`/projects/${encodeURIComponent(id)}/adapters`, {}, { signal })) found.push({ ...adapter, project_id: id });
  return found;
}

const MAX_TOP = 100;
const NONE = { num_requests: 0, num_errors: 0 };

/** traffic(adapter id): its row of the most active ones in a range, null if others are so many; null while nobody knows. */
export function useTraffic(range) {
  const may = canSomewhere("billing.read");
  const top = useApi(may ? "/traffic/top" : null, { by: "adapter_id", order: "requests", start_time: range.start, end_time: range.end, limit: MAX_TOP });
  const rows = top.data?.data;
  return rows ? (id) => rows.find((row) => row.id === id) ?? (rows.length < MAX_TOP ? NONE : null) : null;
}

/** loaded(adapter id): on how many engines it is, or null for who may not see the engines. */
export function useResidency() {
  const engines = useApi(can("organization.read") ? "/engines" : null, {}, { every: 10_000 });
  const list = engines.data?.data;
  return list ? (id) => list.filter(({ resident_adapters: resident }) => resident.some(({ adapter_id: each }) => each === id)) : null;
}

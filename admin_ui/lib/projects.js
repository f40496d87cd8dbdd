// The projects that the reader may see, by id, and the current one: named by the path or the query, or a member's only
// one.

import { pages } from "./api.js";
import { useEffect } from "./html.js";
import { decode, navigate, setQuery, useLocation } from "./router.js";
import { isMember, session$ } from "./session.js";
import { Store, useStore } from "./store.js";

const MAX_LISTED = 1000;
const projects$ = new Store(null);
let reading = null;

/** Return the list of {id, name, status, …}, at most a thousand; null until it has come. */
export function useProjects() {
  const list = useStore(projects$);
  useEffect(() => {
    if (projects$.value === null) readProjects();
  }, []);
  return list;
}

/** Read the projects again, after one was added, renamed or ended. */
export function readProjects() {
  reading ??= (async () => {
    const found = [];
    try {
      for await (const project of pages("/projects")) if (found.push(project) >= MAX_LISTED) break;
    } catch {
      // Names are then ids; the page itself tells what failed.
    }
    projects$.set(found);
    reading = null;
  })();
  return reading;
}

session$.watch(({ state }) => state === "out" && projects$.set(null));

/** Return a function from a project's id to its name, or to the id while names are unknown. */
export function useProjectNames() {
  const list = useProjects();
  return (id) => list?.find((project) => project.id === id)?.name ?? id ?? "–";
}

const IN_PATH = /^\/admin\/(?:(?:tenants|adapters)\/|experiments\/(?=[^/]+\/))([^/]+)/;

/** Return the id of the current project; null for all of the organization. */
export function useProjectId() {
  const { path, query } = useLocation();
  const inPath = path.match(IN_PATH)?.[1];
  if (inPath) return decode(inPath);
  if (query.get("project")) return query.get("project");
  return isMember() ? (session$.value.who.projects?.[0]?.id ?? null) : null;
}

/** Switch to another project, or to all with null: in the same view, if the view exists there. */
export function lookAt(projectId) {
  const { pathname } = window.location;
  const [, before] = pathname.match(IN_PATH) ?? [];
  if (!before) return setQuery({ project: projectId }, { push: true });
  if (projectId === null) return navigate(pathname.split(before)[0]);
  const [, , place] = pathname.split("/");
  return place === "tenants"
    ? navigate(pathname.replace(before, projectId))
    : navigate(`/admin/${place}?project=${projectId}`);
}

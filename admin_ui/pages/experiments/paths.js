// The paths of an experiment in the admin API.

import { pathOf } from "../../lib/projects_api.js";

export const experimentPath = (projectId, id, rest = "") =>
  pathOf(projectId, `/experiments/${encodeURIComponent(id)}${rest}`);

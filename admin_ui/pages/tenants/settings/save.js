// The function that saves a changed setting of a tenant.

import { toast } from "../../../components/toast.js";
import { post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { readProjects } from "../../../lib/projects.js";
import { pathOf } from "../../../lib/projects_api.js";

export async function save(project, changes, text, path = "") {
  await post(pathOf(project.id, path), changes);
  invalidate("/projects");
  readProjects();
  toast(text);
}

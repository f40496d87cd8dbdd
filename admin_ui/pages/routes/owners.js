// The owners of routes: a tenant, or the operator for all tenants. Each owner has paths in the API and in the
// dashboard.

import { pathOf } from "../../lib/projects_api.js";
import { to } from "../../lib/router.js";

export const ofTenant = (id) => ({
  projectId: id,
  base: pathOf(id, "/routes"),
  list: to("tenants", id, "routes"),
  href: (name) => to("tenants", id, "routes", name),
});

export const OF_ALL = { projectId: null, base: "/routes", list: "/admin/models", href: (name) => to("routes", name) };

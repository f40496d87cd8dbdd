// Every view: its path, the module that shows it, and what a reader must be allowed to see it. And the rail's entries.
//
// needs: a permission somewhere, in the organization or in some project; organization: of it in all the organization.

import { can, canSomewhere, isMember, session$ } from "./session.js";

const page = (pattern, load, { needs = null, organization = false, place = pattern.split("/")[0] } = {}) => ({
  pattern,
  load,
  needs,
  organization,
  place,
});

const tenants = (view, file, needs) => page(`tenants/:project${view}`, file, { needs });

export const ROUTES = [
  page("", () => import("../pages/overview/index.js"), { place: "overview" }),
  page("tenants", () => import("../pages/tenants/list.js"), { needs: "projects.read" }),
  tenants("", () => import("../pages/tenants/tenant/index.js"), "projects.read"),
  tenants("/overview", () => import("../pages/tenants/tenant/index.js"), "projects.read"),
  tenants("/settings", () => import("../pages/tenants/settings/index.js"), "projects.read"),
  tenants("/keys", () => import("../pages/tenants/keys/index.js"), "keys.read"),
  tenants("/limits", () => import("../pages/tenants/limits/index.js"), "limits.read"),
  tenants("/members", () => import("../pages/tenants/members.js"), "members.read"),
  tenants("/adapters", () => import("../pages/tenants/adapters.js"), "adapters.read"),
  tenants("/routes", () => import("../pages/routes/list.js"), "routes.read"),
  tenants("/routes/:name", () => import("../pages/routes/route.js"), "routes.read"),
  tenants("/batches", () => import("../pages/batches/list.js"), "billing.read"),
  tenants("/batches/:batch", () => import("../pages/batches/batch.js"), "billing.read"),
  tenants("/refusals", () => import("../pages/tenants/refusals.js"), "limits.read"),
  tenants("/changes", () => import("../pages/tenants/changes.js"), "audit.read"),
  page("models", () => import("../pages/models/index.js"), { needs: "projects.read" }),
  page("routes/:name", () => import("../pages/routes/route.js"), {
    needs: "routes.read",
    organization: true,
    place: "models",
  }),
  page("hosts/:host", () => import("../pages/models/host/index.js"), {
    needs: "pools.read",
    organization: true,
    place: "models",
  }),
  page("models/:pool", () => import("../pages/models/pool/index.js"), { needs: "pools.read", organization: true }),
  page("adapters", () => import("../pages/adapters/list.js"), { needs: "adapters.read" }),
  ...["", "/traffic", "/settings", "/access"].map((view) =>
    page(`adapters/:project/:name${view}`, () => import("../pages/adapters/adapter.js"), { needs: "adapters.read" }),
  ),
  page("experiments", () => import("../pages/experiments/index.js"), { needs: "experiments.read" }),
  page("experiments/metrics", () => import("../pages/experiments/feedback_metrics/index.js"), {
    needs: "experiments.read",
  }),
  page("experiments/units", () => import("../pages/experiments/units/index.js"), { needs: "experiments.read" }),
  page("experiments/:project/new", () => import("../pages/experiments/form/index.js"), { needs: "experiments.write" }),
  page("experiments/:project/:experiment/edit", () => import("../pages/experiments/form/index.js"), {
    needs: "experiments.write",
  }),
  ...["", "/health", "/setup", "/calls"].map((view) =>
    page(`experiments/:project/:experiment${view}`, () => import("../pages/experiments/experiment.js"), {
      needs: "experiments.read",
    }),
  ),
  page("usage", () => import("../pages/usage/explore/index.js"), { needs: "billing.read" }),
  page("usage/prices", () => import("../pages/usage/prices.js"), { needs: "billing.read", organization: true }),
  page("usage/periods", () => import("../pages/usage/periods.js"), { needs: "billing.read" }),
  page("usage/periods/:period", () => import("../pages/usage/period.js"), {
    needs: "billing.read",
    organization: true,
  }),
  page("usage/periods/:period/:project", () => import("../pages/usage/invoice.js"), { needs: "billing.read" }),
  page("usage/exports", () => import("../pages/usage/exports.js"), { needs: "billing.read" }),
  page("usage/credits", () => import("../pages/usage/credits.js"), { needs: "billing.read" }),
  page("playground", () => import("../pages/playground/index.js")),
  page("requests", () => import("../pages/requests/list.js"), { needs: "billing.read" }),
  page("requests/:id", () => import("../pages/requests/request/index.js"), { needs: "billing.read" }),
  page("refusals", () => import("../pages/requests/refusals.js"), { needs: "limits.read", place: "requests" }),
  page("system", () => import("../pages/system/backends.js"), { needs: "organization.read", organization: true }),
  page("system/backends", () => import("../pages/system/backends.js"), {
    needs: "organization.read",
    organization: true,
  }),
  page("system/status", () => import("../pages/system/status.js"), { needs: "organization.read", organization: true }),
  page("system/reconciliation", () => import("../pages/system/reconciliation.js"), {
    needs: "organization.read",
    organization: true,
  }),
  page("system/audit", () => import("../pages/system/audit.js"), { needs: "audit.read", organization: true }),
  page("system/users", () => import("../pages/system/users/index.js"), { needs: "users.read", organization: true }),
  page("system/admin-keys", () => import("../pages/system/admin_keys.js"), {
    needs: "admin_keys.read",
    organization: true,
  }),
  page("system/limits", () => import("../pages/system/limits.js"), { needs: "limits.read", organization: true }),
  page("system/webhooks", () => import("../pages/system/webhooks.js"), {
    needs: "organization.read",
    organization: true,
  }),
  page("account", () => import("../pages/account/index.js")),
  page("signin", () => import("../pages/signin.js")),
];

export function mayOpen({ needs, organization }) {
  return needs === null || (organization ? can(needs) : canSomewhere(needs));
}

/** Return the rail's entries for the signed-in reader: [title, href, icon, place, second key of "g …"]. */
export function places(projectId) {
  if (session$.value.who?.must_set_up_totp) return [];
  if (isMember()) return ofMember(projectId ?? session$.value.who?.projects?.[0]?.id);
  const all = [
    ["Overview", "/admin/", "overview", "overview", "o"],
    ["Tenants", "/admin/tenants", "tenants", "tenants", "t", canSomewhere("projects.read")],
    ["Adapters", "/admin/adapters", "adapters", "adapters", "a", canSomewhere("adapters.read")],
    ["Usage", "/admin/usage", "usage", "usage", "u", canSomewhere("billing.read")],
    ["Models", "/admin/models", "models", "models", "m", can("pools.read")],
    ["Experiments", "/admin/experiments", "experiments", "experiments", "e", canSomewhere("experiments.read")],
    [
      "Playground",
      projectId ? `/admin/playground?project=${encodeURIComponent(projectId)}` : "/admin/playground",
      "playground",
      "playground",
      "p",
      can("keys.write"),
    ],
    ["Requests", "/admin/requests", "requests", "requests", "r", canSomewhere("billing.read")],
    ["System", "/admin/system", "system", "system", "s", can("organization.read")],
  ];
  return all.filter(([, , , , , may = true]) => may);
}

function ofMember(id) {
  if (!id) return [];
  const own = `/admin/tenants/${encodeURIComponent(id)}`;
  const all = [
    ["Overview", own, "overview", "tenant", "o", true],
    ["Adapters", "/admin/adapters", "adapters", "adapters", "a", can("adapters.read", id)],
    ["Keys", `${own}/keys`, "keys", "keys", "k", can("keys.read", id)],
    ["Usage", "/admin/usage", "usage", "usage", "u", can("billing.read", id)],
    ["Models", "/admin/models", "models", "models", "m", can("projects.read", id)],
    ["Experiments", "/admin/experiments", "experiments", "experiments", "e", can("experiments.read", id)],
    ["Limits", `${own}/limits`, "limits", "limits", "l", can("limits.read", id)],
    ["Playground", "/admin/playground", "playground", "playground", "p", can("keys.write", id)],
    ["Requests", "/admin/requests", "requests", "requests", "r", can("billing.read", id)],
  ];
  return all.filter(([, , , , , may]) => may);
}

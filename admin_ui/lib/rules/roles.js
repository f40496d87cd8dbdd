// Roles in words, in the organization and in a tenant: the same four, of different reach.

import { can } from "../session.js";

export const ORGANIZATION_ROLES = {
  owner: "Owner: everything, other owners too",
  admin: "Admin: everything but owners and the organization itself",
  billing: "Billing: usage, prices, invoices and credits",
  viewer: "Viewer: sees all but the audit log and operator keys",
};

export const PROJECT_ROLES = {
  owner: "Owner: all of this tenant, other owners too",
  admin: "Admin: adapters, keys, members and limits of keys",
  billing: "Billing: usage, cost and limits, no change",
  viewer: "Viewer: sees all but who changed what, changes nothing",
};

/** Return [[role, title], …] of the roles that the reader may give: nobody gives a role above their own. */
export function roleOptions(titles, projectId = null) {
  return Object.entries(titles).filter(([role]) => role !== "owner" || can("owners.write", projectId));
}

/** Return whether the reader may change this role of somebody, or take it away. */
export const mayTouch = (role, projectId = null) => role !== "owner" || can("owners.write", projectId);

export const roleName = (role) => (role ? role[0].toUpperCase() + role.slice(1) : "Member");

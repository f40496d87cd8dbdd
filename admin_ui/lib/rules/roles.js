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

/** [[role, title], …] that the reader may give: nobody gives more than they have. */
export function roleOptions(titles, projectId = null) {
  return Object.entries(titles).filter(([role]) => role !== "owner" || can("owners.write", projectId));
}

/** Whether the reader may change or take away this role. */
export const mayTouch = (role, projectId = null) => role !== "owner" || can("owners.write", projectId);

export const roleName = (role) => (role ? role[0].toUpperCase() + role.slice(1) : "Member");

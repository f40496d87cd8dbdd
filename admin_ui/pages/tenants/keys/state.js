// The state of a key, in one word.

import { now } from "../../../lib/format/time.js";

const SOON_S = 7 * 86_400;

/** Return the state of a key: active, suspended, expired or revoked. */
export function stateOf(key) {
  if (key.revoked_at) return "revoked";
  if (key.expires_at && key.expires_at <= now()) return "expired";
  return key.suspended_at ? "suspended" : "active";
}

export const isInUse = (key) => ["active", "suspended"].includes(stateOf(key));

/** Return whether a key expires soon, unless it was made for less than that time. */
export const endsSoon = (key) =>
  isInUse(key) && key.expires_at && key.expires_at - now() < SOON_S && key.expires_at - key.created_at >= SOON_S;

export const ownerOf = ({ owner }) => owner?.user?.name || owner?.user?.email || owner?.service_account?.name || "–";

// The key that the playground calls with: made for an hour, or pasted. It is in this page's memory and nowhere else.

import { del, post } from "../../lib/api.js";
import { session$ } from "../../lib/session.js";
import { Store, useStore } from "../../lib/store.js";
import { now } from "../../lib/time.js";

const LIFETIME_S = 3600;
const SPARE_S = 60;

/** {value, shown, id, projectId, expiresAt} by project; "" holds the one that was pasted. */
const keys$ = new Store({});

session$.watch(({ state }) => state === "out" && keys$.set({}));

/** The one in use: what was pasted, else the project's; null while there is none. */
export function useKey(projectId) {
  return current(useStore(keys$), projectId);
}

function current(keys, projectId) {
  const found = keys[""] ?? keys[projectId];
  return found && (found.expiresAt === null || found.expiresAt - SPARE_S > now()) ? found : null;
}

/** The key in use, or a new one of the project. Throws ApiError. */
export async function needKey(projectId) {
  const found = current(keys$.value, projectId);
  if (found) return found;
  const made = await post(`/projects/${encodeURIComponent(projectId)}/api_keys`, { name: "playground", scopes: ["inference"], expires_at: now() + LIFETIME_S });
  const key = { value: made.value, shown: made.redacted_value, id: made.id, projectId, expiresAt: made.expires_at };
  keys$.set({ ...keys$.value, [projectId]: key });
  return key;
}

export function paste(value) {
  keys$.set({ ...keys$.value, "": { value, shown: `${value.slice(0, 6)}…${value.slice(-4)}`, id: null, projectId: null, expiresAt: null } });
}

/** What was pasted is forgotten, what was made here is revoked as well. Throws ApiError. */
export async function forget({ id, projectId }) {
  if (id) await del(`/projects/${encodeURIComponent(projectId)}/api_keys/${encodeURIComponent(id)}`);
  const { [projectId ?? ""]: _, ...rest } = keys$.value;
  keys$.set(rest);
}

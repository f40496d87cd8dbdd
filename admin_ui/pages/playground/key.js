// The key that the playground calls with: made for an hour, or pasted. The key is in this page's memory and nowhere
// else; a key that was made is revoked when the page is left or the reader signs out.

import { del, post } from "../../lib/api.js";
import { beforeSignOut, session$ } from "../../lib/session.js";
import { Store, useStore } from "../../lib/store.js";
import { now } from "../../lib/format/time.js";

const LIFETIME_S = 3600;
const SPARE_S = 60;

/** The keys by project, {value, shown, id, projectId, expiresAt}; a pasted one has the project "". */
const keys$ = new Store({});

/** Promises of keys that are being made, by project. */
const making = new Map();

session$.watch(({ state }) => state === "out" && keys$.set({}));
beforeSignOut(() => revokeAll());
window.addEventListener("pagehide", () => revokeAll({ keepalive: true }));

/** Return the key in use: the pasted one, else the project's; null if there is none. */
export function useKey(projectId) {
  return current(useStore(keys$), projectId);
}

function current(keys, projectId) {
  const found = keys[""] ?? keys[projectId];
  return found && (found.expiresAt === null || found.expiresAt - SPARE_S > now()) ? found : null;
}

/** Return the key in use, or make one for the project if there is none or it is about to expire. Throws ApiError. */
export async function needKey(projectId) {
  const found = current(keys$.value, projectId);
  if (found) return found;
  if (!making.has(projectId))
    making.set(
      projectId,
      make(projectId).finally(() => making.delete(projectId)),
    );
  return making.get(projectId);
}

async function make(projectId) {
  const made = await post(`/projects/${encodeURIComponent(projectId)}/api_keys`, {
    name: "playground",
    scopes: ["inference"],
    expires_at: now() + LIFETIME_S,
  });
  const key = { value: made.value, shown: made.redacted_value, id: made.id, projectId, expiresAt: made.expires_at };
  const before = keys$.value[projectId];
  keys$.set({ ...keys$.value, [projectId]: key });
  if (before) revoke(before).catch(() => {}); // It expires within the minute.
  return key;
}

export function paste(value) {
  keys$.set({
    ...keys$.value,
    "": { value, shown: `${value.slice(0, 6)}…${value.slice(-4)}`, id: null, projectId: null, expiresAt: null },
  });
}

/** Forget a key; one that was made here is revoked as well. Throws ApiError. */
export async function forget(key) {
  if (key.id) await revoke(key);
  const { [key.projectId ?? ""]: _, ...rest } = keys$.value;
  keys$.set(rest);
}

function revoke({ id, projectId }, options) {
  return del(`/projects/${encodeURIComponent(projectId)}/api_keys/${encodeURIComponent(id)}`, options);
}

/** Revoke all keys that were made here; if that fails, they expire within the hour. */
function revokeAll(options) {
  const { "": pasted, ...made } = keys$.value;
  keys$.set(pasted ? { "": pasted } : {});
  return Promise.allSettled(Object.values(made).map((key) => revoke(key, options)));
}

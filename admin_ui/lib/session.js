// The session: the person who is signed in, and their permissions. Actions that a role does not allow are not shown;
// the API enforces permissions.

import * as api from "./api.js";
import { forgetAll } from "./data.js";
import { logIn } from "./passkeys.js";
import { Store, useStore } from "./store.js";

/** The session: {state: "loading" | "in" | "out" | "unreachable", who}. who is the reply of GET /admin/v1/session. */
export const session$ = new Store({ state: "loading", who: null });

export async function readSession() {
  try {
    const { has_cookie: mayBeIn } = await api.get("/admin/v1/login");
    if (!mayBeIn) return void signedOut();
    signedIn(await api.get("/admin/v1/session"));
  } catch (error) {
    if (error.status === 401 || error.status === 403) signedOut();
    else session$.set({ state: "unreachable", who: null, error });
  }
}

/** Sign in with a password. code: the authenticator's code, for people who have one. Throws ApiError. */
export async function signIn(email, password, code) {
  await api.post("/admin/v1/login", { email, password, ...(code && { code }) });
  otherTabs?.postMessage("changed");
  forgetAll();
  await readSession();
}

/** Sign in by a passkey, without password and code. Throws as `logIn` does. */
export async function signInByPasskey() {
  await logIn();
  otherTabs?.postMessage("changed");
  forgetAll();
  await readSession();
}

/**
 * The channel between tabs, which share one cookie: when one tab signs in or out, the others read the session again.
 */
const otherTabs = globalThis.BroadcastChannel && new BroadcastChannel("lorikeet-login");
otherTabs?.addEventListener("message", () => {
  forgetAll();
  readSession();
});

const endings = new Set();

/**
 * Add a function to call before signing out, while the login still holds. Signing out waits for it, even if it fails.
 */
export function beforeSignOut(callback) {
  endings.add(callback);
}

export async function signOut() {
  try {
    await Promise.allSettled([...endings].map((callback) => callback()));
    await api.post("/admin/v1/logout");
  } finally {
    otherTabs?.postMessage("changed");
    signedOut();
  }
}

function signedIn(who) {
  api.setCsrfToken(who.csrf_token);
  session$.set({ state: "in", who });
}

function signedOut() {
  api.setCsrfToken("");
  forgetAll();
  session$.set({ state: "out", who: null });
}

api.onSignedOut(signedOut);

/** Return whether the reader has a permission in the whole organization, or in this project. */
export function can(permission, projectId = null) {
  const who = session$.value.who;
  if (!who) return false;
  if ((who.permissions ?? []).includes(permission)) return true;
  return (who.projects ?? []).some((each) => each.id === projectId && each.permissions.includes(permission));
}

/** Return whether the reader has a permission anywhere: in the organization or in one of the projects. */
export function canSomewhere(permission) {
  const who = session$.value.who;
  return can(permission) || (who?.projects ?? []).some((each) => each.permissions.includes(permission));
}

/** Return whether the reader belongs to single projects only, as a customer's people do. */
export function isMember() {
  const who = session$.value.who;
  return who !== null && !who.role;
}

export function useSession() {
  return useStore(session$);
}

// Who is signed in, and what they may do. What a role may not do is not shown; that it is not possible is the API's
// part.

import * as api from "./api.js";
import { forgetAll } from "./data.js";
import { logIn } from "./passkeys.js";
import { Store, useStore } from "./store.js";

/** {state: "loading" | "in" | "out" | "unreachable", who}: who is the reply of GET /admin/v1/session. */
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

/** code: of the authenticator, for who has one. Throws ApiError. */
export async function signIn(email, password, code) {
  await api.post("/admin/v1/login", { email, password, ...(code && { code }) });
  otherTabs?.postMessage("changed");
  forgetAll();
  await readSession();
}

/** By a passkey, without password and code. Throws as `logIn` does. */
export async function signInByPasskey() {
  await logIn();
  otherTabs?.postMessage("changed");
  forgetAll();
  await readSession();
}

/** Tabs share one cookie: what one does about the login, the others look up. */
const otherTabs = globalThis.BroadcastChannel && new BroadcastChannel("lorikeet-login");
otherTabs?.addEventListener("message", () => {
  forgetAll();
  readSession();
});

const endings = new Set();

/** callback: what to end while the login still holds; signing out waits for it, and does not mind if it fails. */
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

/** Whether the reader may do it in the whole organization, or in this project. */
export function can(permission, projectId = null) {
  const who = session$.value.who;
  if (!who) return false;
  if ((who.permissions ?? []).includes(permission)) return true;
  return (who.projects ?? []).some((each) => each.id === projectId && each.permissions.includes(permission));
}

/** Whether they may do it anywhere: in the organization or in some project of theirs. */
export function canSomewhere(permission) {
  const who = session$.value.who;
  return can(permission) || (who?.projects ?? []).some((each) => each.permissions.includes(permission));
}

/** Whether they are of single projects only, a customer's people. */
export function isMember() {
  const who = session$.value.who;
  return who !== null && !who.role;
}

export function useSession() {
  return useStore(session$);
}

// Passkeys: what the server asks of the browser's WebAuthn, and what a device answers. Bytes travel in base64.

import { ApiError, get, post } from "./api.js";

/** Return whether a passkey can be used at this page. origin: the server's own origin, null if it has none. */
export function isPossible(origin) {
  return origin === location.origin && Boolean(globalThis.PublicKeyCredential);
}

/** Ask the server, and return whether passkeys can be used here. */
export async function arePossible() {
  return isPossible((await get("/admin/v1/login")).passkey_origin);
}

/**
 * Log in by a passkey of the reader's device, which sets the login's cookie. Throws ApiError, or the browser's error.
 */
export async function logIn() {
  const asked = await post("/admin/v1/login/passkey");
  const { rawId, response } = await navigator.credentials.get({
    publicKey: {
      challenge: bytes(asked.challenge),
      rpId: asked.rp_id,
      timeout: asked.timeout_ms,
      userVerification: "required",
    },
  });
  await post("/admin/v1/login/passkey/confirm", {
    credential_id: base64(rawId),
    client_data: base64(response.clientDataJSON),
    authenticator_data: base64(response.authenticatorData),
    signature: base64(response.signature),
    user_handle: response.userHandle?.byteLength ? base64(response.userHandle) : null,
  });
}

/** Have a device make a passkey, and add it. code: the authenticator's code, for readers who have one. */
export async function add(name, password, code) {
  const asked = await post("/admin/v1/passkeys", { password, ...(code && { code }) });
  const { rawId, response } = await navigator.credentials.create({
    publicKey: {
      challenge: bytes(asked.challenge),
      rp: { id: asked.rp_id, name: "Lorikeet" },
      user: { id: bytes(asked.user_handle), name: asked.email, displayName: asked.email },
      pubKeyCredParams: asked.algorithms.map((alg) => ({ type: "public-key", alg })),
      excludeCredentials: asked.existing.map((id) => ({ type: "public-key", id: bytes(id) })),
      authenticatorSelection: { residentKey: "required", userVerification: "required" },
      attestation: "none",
      timeout: asked.timeout_ms,
    },
  });
  return await post("/admin/v1/passkeys/confirm", {
    name,
    credential_id: base64(rawId),
    client_data: base64(response.clientDataJSON),
    attestation: base64(response.attestationObject),
  });
}

/**
 * Return an error of the browser, the device or the server in words.
 *
 * other: words that take the place of the usual ones, by the error's name.
 */
export function inWords(error, other = {}) {
  if (!(error instanceof DOMException)) return error;
  const words = {
    NotAllowedError: "No passkey was given: it was refused, took too long, or there is none here.",
    InvalidStateError: "This device holds a passkey of yours already. Sign in with it; one on each device is enough.",
    SecurityError: "The browser takes no passkeys at this address.",
    ...other,
  };
  return new ApiError({
    status: 0,
    code: "passkey",
    message: words[error.name] ?? "The browser could not use a passkey.",
  });
}

const base64 = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)));
const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

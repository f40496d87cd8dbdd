// Words for roles and for ways to sign in.

import { plural } from "../../../lib/format/format.js";

export const NO_ROLE = ["", "Member: only the tenants they are added to"];

export function signsIn({
  has_password: password,
  has_totp: totp,
  num_passkeys: passkeys,
  is_locked_out: isLockedOut,
}) {
  if (isLockedOut) return "locked out: passkeys of another address";
  const ways = [
    password && (totp ? "password and authenticator" : "password"),
    passkeys && plural(passkeys, "passkey"),
  ];
  return ways.filter(Boolean).join(", or ") || "no password yet";
}

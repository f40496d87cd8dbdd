// Roles and ways to sign in, in words.

export const NO_ROLE = ["", "Member: only the tenants they are added to"];

export const signsIn = ({ has_password: password, has_totp: totp, is_locked_out: isLockedOut }) =>
  isLockedOut
    ? "locked out: passkeys of another address"
    : !password
      ? "no password yet"
      : totp
        ? "password and authenticator"
        : "password";

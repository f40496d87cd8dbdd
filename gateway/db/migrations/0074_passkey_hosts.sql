-- The host name that a passkey belongs to. Passkeys of before have none until they are used.

ALTER TABLE passkeys ADD COLUMN rp_id text;

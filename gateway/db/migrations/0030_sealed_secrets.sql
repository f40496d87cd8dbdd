-- Secrets that gateways need in clear are encrypted by them: the content key's id stands beside each. NULL: from before,
-- until a gateway has encrypted it at its start. Gateways of the version before cannot read what is encrypted.

ALTER TABLE users ADD COLUMN totp_content_key text;
ALTER TABLE webhooks ADD COLUMN content_key text;
ALTER TABLE deliveries ADD COLUMN content_key text,
    ALTER COLUMN secret TYPE bytea USING convert_to(secret, 'UTF8');

-- The secret of a webhook before its last rotation, which signs messages too until the receiver knows the new one.

ALTER TABLE webhooks ADD COLUMN former_secret bytea;
ALTER TABLE webhooks ADD COLUMN former_content_key text;
ALTER TABLE webhooks ADD COLUMN former_until timestamptz;

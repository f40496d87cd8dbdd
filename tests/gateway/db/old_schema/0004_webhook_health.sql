-- What became of a webhook's messages outlives the messages.

ALTER TABLE webhooks
    ADD COLUMN last_delivered_at  timestamptz,
    ADD COLUMN last_failed_at     timestamptz,
    ADD COLUMN last_error         text;

CREATE INDEX webhook_deliveries_by_webhook ON webhook_deliveries (webhook_id);

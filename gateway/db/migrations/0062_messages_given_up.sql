-- The index of messages that are due leaves out those that were given up: each look would read them all otherwise.
DROP INDEX webhook_deliveries_due;

CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at) WHERE delivered_at IS NULL AND attempts < 46;

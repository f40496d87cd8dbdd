-- The events that each webhook is called for; before, all there were.
ALTER TABLE webhooks ADD COLUMN events text[] NOT NULL DEFAULT '{limit.threshold_reached,experiment.paused}';

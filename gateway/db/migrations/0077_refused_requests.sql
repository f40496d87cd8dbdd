-- Rows of before have none: what an engine refused was counted as an error then.
ALTER TABLE rollup_queue ADD COLUMN num_refused bigint NOT NULL DEFAULT 0;
ALTER TABLE traffic_rollups ADD COLUMN num_refused bigint NOT NULL DEFAULT 0;

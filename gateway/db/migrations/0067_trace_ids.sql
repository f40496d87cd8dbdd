-- The traces of requests.

ALTER TABLE ledger ADD COLUMN trace_id text;

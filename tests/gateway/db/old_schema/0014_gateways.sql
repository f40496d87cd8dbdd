-- What an operator sees of each gateway beside its journal. NULL: of a version before, or of no gateway that runs.
ALTER TABLE journals
    ADD COLUMN version text,
    ADD COLUMN started_at timestamptz;

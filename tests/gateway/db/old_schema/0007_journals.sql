-- What each journal had open when it was last heard of: requests that were sent to an engine and have no row yet. A
-- journal that is replayed loses its row. One whose folder is lost keeps it, less what its engine could tell another
-- gateway: those are the requests that nobody can bill.
CREATE TABLE journals (
    id             text PRIMARY KEY,
    open_requests  bigint NOT NULL CHECK (open_requests >= 0),
    heard_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What the ledger took of each engine's own counts, to hold against what the engine says that it counted. By journal,
-- so that no two gateways wait for each other. completion_tokens: discarded ones included.
CREATE TABLE engine_usage (
    engine_id          text NOT NULL,
    journal_id         text NOT NULL,
    prompt_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    updated_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (engine_id, journal_id)
);

-- Pools whose number of replicas follows their load.

CREATE TABLE pool_scaling (
    pool_id       text PRIMARY KEY REFERENCES pools (id),
    min_replicas  integer NOT NULL CHECK (min_replicas BETWEEN 0 AND 1000),
    max_replicas  integer NOT NULL CHECK (max_replicas BETWEEN 1 AND 1000),
    down_after_s  integer NOT NULL CHECK (down_after_s BETWEEN 10 AND 86400),
    decided_at    timestamptz,
    why           text NOT NULL DEFAULT '',
    start_s       double precision,
    memory        jsonb NOT NULL DEFAULT 'null',
    CHECK (min_replicas <= max_replicas)
);

CREATE UNLOGGED TABLE pool_loads (
    pool_id     text NOT NULL,
    gateway_id  text NOT NULL,
    at          timestamptz NOT NULL,
    load        jsonb NOT NULL,
    PRIMARY KEY (pool_id, gateway_id)
);

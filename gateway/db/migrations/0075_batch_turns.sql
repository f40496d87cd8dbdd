CREATE TABLE batch_turns (
    pool        text NOT NULL,
    project_id  text NOT NULL REFERENCES projects (id),
    lifted_to   double precision NOT NULL,
    work        double precision NOT NULL,
    -- When a line of the project waited last.
    asked_at    timestamptz NOT NULL,
    PRIMARY KEY (pool, project_id)
);

CREATE INDEX batch_turns_by_project ON batch_turns (project_id);

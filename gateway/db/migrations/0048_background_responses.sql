-- Responses that run in the background, and the events of their streams.
CREATE TABLE background_responses (
    project_id       text NOT NULL REFERENCES projects (id),
    id               text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    model            text NOT NULL,
    api_key_id       text NOT NULL,
    status           text NOT NULL
        CHECK (status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')),
    -- The gateway that runs the response, until when it says so, and the number of the gateway's turn: what a gateway
    -- writes under an earlier number is refused.
    owner            text,
    lease_until      timestamptz,
    fence            bigint NOT NULL DEFAULT 0,
    cancel_at        timestamptz,
    ended_at         timestamptz,
    num_events       integer NOT NULL,
    content_key      text NOT NULL,
    -- The request until the response has ended, and the response by now.
    sealed_request   bytea NOT NULL,
    sealed_response  bytea NOT NULL,
    PRIMARY KEY (project_id, id),
    CHECK ((ended_at IS NULL) = (status IN ('queued', 'in_progress')))
);

CREATE INDEX background_responses_open ON background_responses (created_at) WHERE ended_at IS NULL;
CREATE INDEX background_responses_by_time ON background_responses (project_id, created_at);
CREATE INDEX background_responses_by_content_key ON background_responses (content_key);

-- Events of a stream in rows of several. Once a row is there, a client may have seen it: it never changes.
CREATE TABLE background_events (
    project_id    text NOT NULL,
    response_id   text NOT NULL,
    first_number  integer NOT NULL,
    num_events    integer NOT NULL,
    content_key   text NOT NULL,
    sealed        bytea NOT NULL,
    PRIMARY KEY (project_id, response_id, first_number),
    FOREIGN KEY (project_id, response_id) REFERENCES background_responses ON DELETE CASCADE
);

CREATE INDEX background_events_by_content_key ON background_events (content_key);

ALTER TABLE background_responses
    ALTER COLUMN sealed_request SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_response SET STORAGE EXTERNAL;
ALTER TABLE background_events ALTER COLUMN sealed SET STORAGE EXTERNAL;

-- Stored responses. Each row has its own turn alone: a conversation is read by following the parents.
CREATE TABLE stored_responses (
    project_id       text NOT NULL REFERENCES projects (id),
    id               text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    model            text NOT NULL,
    -- The response that this one follows. It may be gone: then nobody can follow this one any more.
    parent_id        text,
    content_key      text NOT NULL,
    -- The items of the request, those of the reply, and the reply without them.
    sealed_input     bytea NOT NULL,
    sealed_output    bytea NOT NULL,
    sealed_response  bytea NOT NULL,
    PRIMARY KEY (project_id, id)
);

CREATE INDEX stored_responses_by_time ON stored_responses (project_id, created_at);
CREATE INDEX stored_responses_by_content_key ON stored_responses (content_key);

ALTER TABLE stored_responses
    ALTER COLUMN sealed_input SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_output SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_response SET STORAGE EXTERNAL;

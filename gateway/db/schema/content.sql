-- Content of tenants, encrypted by gateways: replies for an Idempotency-Key, stored chat completions and logged requests.
-- Each row names the key that opens it. Columns named sealed hold ciphertext, which does not compress.

-- Ids of the keys that gateways encrypt with; the keys themselves are never in the database.
CREATE TABLE content_keys (
    id       text PRIMARY KEY,
    -- When a gateway last reported that it uses the key.
    used_at  timestamptz NOT NULL DEFAULT now()
);

-- One row per Idempotency-Key that a client sent: the gateway that inserts the row executes the request.
CREATE TABLE idempotency_keys (
    project_id   text NOT NULL REFERENCES projects (id),
    key_sha256   bytea NOT NULL,
    -- The fingerprint of the request, and the id of the request that executes.
    fingerprint  bytea NOT NULL,
    request_id   text NOT NULL,
    -- Whether a reply is in kept_replies, or why not. A lost request that is run again may still keep its reply.
    state        text NOT NULL DEFAULT 'running'
                 CHECK (state IN ('running', 'kept', 'too_large', 'not_allowed', 'lost')),
    -- The gateway that executes moves this instant on; a request that is still running after it is lost.
    alive_until  timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (project_id, key_sha256)
);

CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

-- A table of its own, since backups leave its rows out: the key that opens them is in the same backup.
CREATE TABLE kept_replies (
    project_id   text NOT NULL,
    key_sha256   bytea NOT NULL,
    kept_at      timestamptz NOT NULL DEFAULT now(),
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    PRIMARY KEY (project_id, key_sha256),
    FOREIGN KEY (project_id, key_sha256) REFERENCES idempotency_keys ON DELETE CASCADE
);

CREATE INDEX kept_replies_by_time ON kept_replies (project_id, kept_at);
CREATE INDEX kept_replies_by_content_key ON kept_replies (content_key);

CREATE TABLE stored_chats (
    project_id       text NOT NULL REFERENCES projects (id),
    id               text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    model            text NOT NULL,
    -- One tag for each pair of the metadata, by which the chat is found; only gateways with the key can compute them.
    tags             bytea[] NOT NULL,
    content_key      text NOT NULL,
    sealed_metadata  bytea NOT NULL,
    sealed_messages  bytea NOT NULL,
    sealed_reply     bytea NOT NULL,
    PRIMARY KEY (project_id, id)
);

CREATE INDEX stored_chats_by_time ON stored_chats (project_id, created_at, id);
CREATE INDEX stored_chats_by_tag ON stored_chats USING gin (tags);
CREATE INDEX stored_chats_by_content_key ON stored_chats (content_key);

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
    -- The request until the response is stored with its input, and the response by now.
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

-- Conversations: items that one response after the other adds to.
CREATE TABLE conversations (
    project_id       text NOT NULL REFERENCES projects (id),
    id               text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    -- The project's days count from here.
    changed_at       timestamptz NOT NULL DEFAULT now(),
    -- The models that have added items.
    models           text[] NOT NULL DEFAULT '{}',
    next_number      bigint NOT NULL DEFAULT 0,
    num_bytes        bigint NOT NULL DEFAULT 0,
    content_key      text NOT NULL,
    sealed_metadata  bytea NOT NULL,
    PRIMARY KEY (project_id, id)
);

CREATE INDEX conversations_by_time ON conversations (project_id, changed_at);
CREATE INDEX conversations_by_content_key ON conversations (content_key);

CREATE TABLE conversation_items (
    project_id       text NOT NULL,
    conversation_id  text NOT NULL,
    number           bigint NOT NULL,
    id               text NOT NULL,
    num_bytes        bigint NOT NULL,
    content_key      text NOT NULL,
    sealed           bytea NOT NULL,
    PRIMARY KEY (project_id, conversation_id, number),
    UNIQUE (project_id, conversation_id, id),
    FOREIGN KEY (project_id, conversation_id) REFERENCES conversations ON DELETE CASCADE
);

CREATE INDEX conversation_items_by_content_key ON conversation_items (content_key);

-- What requests said and were answered, redacted, for projects that log it. Backups leave the rows out.
CREATE TABLE request_contents (
    project_id   text NOT NULL REFERENCES projects (id),
    request_id   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    -- The end that was promised when the content was logged: a longer setting does not extend it, a shorter one hides
    -- the content sooner.
    expires_at   timestamptz NOT NULL,
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    PRIMARY KEY (project_id, request_id)
);

CREATE INDEX request_contents_by_time ON request_contents (project_id, created_at);
CREATE INDEX request_contents_by_expiry ON request_contents (expires_at);
CREATE INDEX request_contents_by_content_key ON request_contents (content_key);

ALTER TABLE kept_replies ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE request_contents ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE stored_chats
    ALTER COLUMN sealed_metadata SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_messages SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_reply SET STORAGE EXTERNAL;
ALTER TABLE stored_responses
    ALTER COLUMN sealed_input SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_output SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_response SET STORAGE EXTERNAL;
ALTER TABLE conversations ALTER COLUMN sealed_metadata SET STORAGE EXTERNAL;
ALTER TABLE conversation_items ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE background_responses
    ALTER COLUMN sealed_request SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_response SET STORAGE EXTERNAL;
ALTER TABLE background_events ALTER COLUMN sealed SET STORAGE EXTERNAL;

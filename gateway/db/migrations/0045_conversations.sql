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

ALTER TABLE conversations ALTER COLUMN sealed_metadata SET STORAGE EXTERNAL;
ALTER TABLE conversation_items ALTER COLUMN sealed SET STORAGE EXTERNAL;

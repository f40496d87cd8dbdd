-- Files of tenants. What they hold lies in the file store, in encrypted pieces; the rows say whose they are.

CREATE TABLE files (
    project_id   text NOT NULL REFERENCES projects (id),
    id           text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    -- When its project deleted it. Nothing shows it any more; the row goes once nothing reads the content.
    removed_at   timestamptz,
    purpose      text NOT NULL,
    num_bytes    bigint NOT NULL,
    -- The name that the client gave, and the key that opens it.
    content_key  text NOT NULL,
    sealed_name  bytea NOT NULL,
    PRIMARY KEY (project_id, id)
);

CREATE INDEX files_by_time ON files (project_id, created_at, id);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX files_removed ON files (removed_at) WHERE removed_at IS NOT NULL;
CREATE INDEX files_by_content_key ON files (content_key);

-- Files that come part by part. An upload that is pending after its time takes no more parts.
CREATE TABLE file_uploads (
    project_id    text NOT NULL REFERENCES projects (id),
    id            text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    state         text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'completed', 'cancelled')),
    purpose       text NOT NULL,
    num_bytes     bigint NOT NULL,
    -- Seconds after which the file expires, from its own creation on.
    keep_seconds  bigint,
    file_id       text,
    content_key   text NOT NULL,
    sealed_name   bytea NOT NULL,
    PRIMARY KEY (project_id, id)
);

CREATE INDEX file_uploads_by_expiry ON file_uploads (expires_at);
CREATE INDEX file_uploads_by_content_key ON file_uploads (content_key);

-- What the file store holds: the content of a file is that of its parts, one behind the other. A part is there before its
-- first piece is written, so that whatever lies in the store has a row.
CREATE TABLE file_parts (
    project_id   text NOT NULL REFERENCES projects (id),
    id           text NOT NULL,
    state        text NOT NULL DEFAULT 'coming' CHECK (state IN ('coming', 'whole', 'removed')),
    -- Moved on while the part comes.
    touched_at   timestamptz NOT NULL DEFAULT now(),
    num_bytes    bigint NOT NULL DEFAULT 0,
    -- The key that has encrypted the pieces.
    content_key  text NOT NULL,
    upload_id    text,
    file_id      text,
    -- The place among the file's parts.
    number       integer,
    PRIMARY KEY (project_id, id),
    UNIQUE (project_id, file_id, number)
);

CREATE INDEX file_parts_by_upload ON file_parts (project_id, upload_id) WHERE upload_id IS NOT NULL;
CREATE INDEX file_parts_to_remove ON file_parts (touched_at) WHERE state <> 'whole';
CREATE INDEX file_parts_by_content_key ON file_parts (content_key);

ALTER TABLE files ALTER COLUMN sealed_name SET STORAGE EXTERNAL;
ALTER TABLE file_uploads ALTER COLUMN sealed_name SET STORAGE EXTERNAL;

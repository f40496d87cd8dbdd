-- Values of labels whose hosts a pool excludes, the version of a host's agent, where a journal is, and what happened to
-- one object.

-- First, since it may take long on a large table, while which only writers of the audit log wait.
CREATE INDEX audit_log_by_object ON audit_log (organization_id, object_id, sequence);

ALTER TABLE pools ADD COLUMN exclusion jsonb NOT NULL DEFAULT '{}';
ALTER TABLE hosts ADD COLUMN version text;

ALTER TABLE journals ADD COLUMN folder text;

-- Values of labels whose hosts a pool excludes, the version of a host's agent, where a journal is, and what happened to
-- one object.

ALTER TABLE pools ADD COLUMN exclusion jsonb NOT NULL DEFAULT '{}';
ALTER TABLE hosts ADD COLUMN version text;

ALTER TABLE journals ADD COLUMN folder text;

CREATE INDEX audit_log_by_object ON audit_log (organization_id, object_id, sequence);

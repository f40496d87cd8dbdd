-- Refused adapters pause their project's uploads (gateway/db/refused_adapters.py).

-- inspection: how far that of the content is; NULL where nobody has begun. wait_until: when an import whose project was
-- paused may be fetched.
ALTER TABLE adapter_imports
    ADD COLUMN inspection text CHECK (inspection IN ('begun', 'passed')),
    ADD COLUMN wait_until timestamptz;

CREATE INDEX adapter_imports_over ON adapter_imports (project_id, updated_at) WHERE state IN ('done', 'rejected', 'failed');

-- Refused adapters pause their project's uploads (gateway/db/refusals.py).

-- inspecting_since: when somebody began to inspect the content; NULL where nobody has. wait_until: when an import whose
-- project was paused may be fetched.
ALTER TABLE adapter_imports
    ADD COLUMN inspecting_since timestamptz,
    ADD COLUMN wait_until timestamptz;

CREATE INDEX adapter_imports_over ON adapter_imports (project_id, updated_at) WHERE state IN ('done', 'rejected', 'failed');

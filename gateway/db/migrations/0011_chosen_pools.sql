-- The name of a decided experiment keeps the pool of the arm that was chosen, also where that serves an adapter.

ALTER TABLE model_aliases
    DROP CONSTRAINT model_aliases_target_check,
    ADD CONSTRAINT model_aliases_target_check CHECK (
        (target_kind = 'version') = (adapter_id IS NOT NULL) AND (adapter_id IS NULL) = (version IS NULL)
        AND CASE target_kind WHEN 'pool' THEN pool_id IS NOT NULL WHEN 'version' THEN true ELSE pool_id IS NULL END
        AND (target_kind = 'experiment') = (experiment_id IS NOT NULL));

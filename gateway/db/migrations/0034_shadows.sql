-- Copies of requests for shadow arms of experiments: billed in the tier 'shadow', and found by their experiment.

CREATE INDEX ledger_shadows ON ledger (experiment_id, created_at) WHERE service_tier = 'shadow';

ALTER TABLE limits DROP CONSTRAINT limits_unit_check;
ALTER TABLE limits ADD CONSTRAINT limits_unit_check
    CHECK (unit IN ('requests', 'input_tokens', 'output_tokens', 'tokens', 'cost_nanos', 'concurrency', 'storage_bytes',
                    'enqueued_batch_tokens'));

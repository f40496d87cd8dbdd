CREATE OR REPLACE TRIGGER experiments_changed
    AFTER INSERT OR DELETE OR UPDATE ON experiments FOR EACH ROW EXECUTE FUNCTION announce_change();

-- Leaves what new rows of the ledger say of units that are analysed for the bookkeeper of experiments.
CREATE OR REPLACE FUNCTION queue_for_experiments() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO experiment_events (experiment_id, kind, request_id, attempt, revision, finish_reason, prompt_tokens,
                                   completion_tokens, cost_nanos, queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms,
                                   created_at)
    SELECT n.experiment_id, 'usage', n.request_id, n.attempt, n.revision, n.finish_reason, n.prompt_tokens,
           n.completion_tokens, n.cost_nanos, n.queue_ms, n.prefill_ms, n.decode_ms, n.ttft_ms, n.latency_ms,
           n.created_at
    FROM new_rows n WHERE n.experiment_epoch > 0 AND n.kind = 'usage';
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER ledger_moves_experiments AFTER INSERT ON ledger REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION queue_for_experiments();

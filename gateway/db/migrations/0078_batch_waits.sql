ALTER TABLE batches
    ADD COLUMN waits_code     text,
    ADD COLUMN waits_message  text;

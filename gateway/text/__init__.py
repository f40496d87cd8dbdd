"""Text in and out of token ids: chat template, tokenizer, incremental detokenizer and stop strings."""

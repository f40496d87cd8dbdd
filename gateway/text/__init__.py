"""Text in and out of token ids: chat template, tokenizer, incremental detokenizer and stop strings.

`redact` takes personal data and secrets out of a text, before it is kept or logged.
"""

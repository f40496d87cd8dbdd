"""Text in and out of token ids: chat template, tokenizer, incremental detokenizer and stop strings.

`redact` takes out of a text what identifies people or opens doors, before it is kept or logged.
"""

"""The text, calls of tools and log-probabilities of completions, made from the token ids that any backend yields."""

"""From hidden states to what a request wants: tokens, log-probabilities, embeddings. The products are in `kernels`.

outputs             which rows of a step are sampled, scored or pooled
logits_processors   what a request's options do to its logits, and in which order
sampler             one token for each row, each with its own seed
logprobs            the log-probabilities of tokens and of their alternatives
"""

"""Turns hidden states into a request's results: tokens, log-probabilities, embeddings. The products are in `kernels`.

    outputs            the rows of a step that are sampled, scored or pooled
    logits_processors  the effects of a request's options on its logits, and their order
    sampler            one token for each row, each with its own seed
    logprobs           the log-probabilities of tokens and of their alternatives

Log-probabilities are read off the unmodified logits. Then come logit_bias, penalties, the mask of the grammar or of
`allowed_token_ids`, min_tokens; then temperature, top-k, top-p, min-p and a draw that depends on the request's seed and
position alone, never on its neighbors.
"""

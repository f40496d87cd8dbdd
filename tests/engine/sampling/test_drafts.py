"""Drafts never change a text: whatever is guessed, each row chooses what a run without drafts chooses there."""

from __future__ import annotations

import random

import pytest

from engine.protocol import GenerateRequest, TokenLogprobs
from engine.sequence import Chunk, Sequence
from tests.engine.harness import greedy
from tests.engine.lora.tenants import Tenants
from tests.engine.sampling.plans import HandMadePlans, decode

NUM_TOKENS = 24
KINDS: dict[str, dict[str, object]] = {
    "greedy": {},
    "greedy-penalties": {"frequency_penalty": 0.8, "presence_penalty": 0.4, "repetition_penalty": 1.3},
    "seeded": {"temperature": 1.0, "seed": 5},
    "seeded-truncated": {"temperature": 0.8, "seed": 6, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2},
    "seeded-biased": {"temperature": 1.2, "seed": 7, "min_p": 0.05, "logit_bias": {3: 4.0, 9: -100.0}},
    "seeded-allowed": {"temperature": 1.0, "seed": 9, "allowed_token_ids": list(range(0, 199, 5))},
    "late-stop": {"temperature": 1.0, "seed": 8, "min_tokens": NUM_TOKENS, "stop_token_ids": list(range(0, 150, 2))},
}


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("tenants"))


def requests(tenants: Tenants) -> list[GenerateRequest]:
    """Return requests of every kind for the base and two adapters, with prompts of a few lengths."""
    rnd = random.Random(1)
    return [
        greedy(
            f"{kind}/{adapter}",
            [rnd.randrange(199) for _ in range(rnd.choice((1, 9, 33)))],
            NUM_TOKENS,
            adapter=tenants.digests[adapter],
            **changes,
        )
        for kind, changes in KINDS.items()
        for adapter in ("", "attention-r4", "all-rslora-r16")
    ]


def unfinished_sequences(sequences: list[Sequence]) -> list[Sequence]:
    return [s for s in sequences if s.num_completion_tokens < NUM_TOKENS]


def plain_texts(tenants: Tenants, asked: list[GenerateRequest]) -> dict[str, tuple[list[int], list[TokenLogprobs]]]:
    plans = HandMadePlans(tenants.model_dir, tenants.store_dir, list(tenants.digests.values())[1:])
    sequences = [plans.start(request) for request in asked]
    logprobs: dict[str, list[TokenLogprobs]] = {request.request_id: [] for request in asked}
    while running := unfinished_sequences(sequences):
        prefills = [Chunk.of(s, 0, len(s.token_ids)) for s in running if not s.num_computed]
        decodes = [decode(s) for s in running if s.num_computed]
        for chunk, result in zip(decodes + prefills, plans.step(decodes, prefills), strict=True):
            logprobs[chunk.sequence.request_id] += [s.logprobs for s in result.sampled if s.logprobs]
    return {s.request_id: (s.token_ids[s.num_prompt_tokens :], logprobs[s.request_id]) for s in sequences}


def guess(rnd: random.Random, rest: list[int]) -> tuple[int, ...]:
    """Return up to four draft tokens: the true next tokens, each of which may be replaced by a wrong one."""
    drafts = rest[: rnd.randrange(5)][: max(len(rest) - 1, 0)]
    return tuple(rnd.randrange(199) if rnd.random() < 0.3 else token for token in drafts)


def test_texts_with_drafts_equal_texts_without(tenants: Tenants) -> None:
    asked = requests(tenants)
    plain = plain_texts(tenants, asked)
    plans = HandMadePlans(tenants.model_dir, tenants.store_dir, list(tenants.digests.values())[1:])
    rnd = random.Random(2)
    sequences = [plans.start(request) for request in asked]
    waiting = sequences.copy()
    num_right = num_wrong = 0
    while running := unfinished_sequences(sequences):
        prefills = [Chunk.of(s, 0, len(s.token_ids)) for s in waiting[:4]]  # the rest later, beside others' drafts
        del waiting[:4]
        decodes = [
            decode(s, guess(rnd, plain[s.request_id][0][s.num_completion_tokens :])) for s in running if s.num_computed
        ]
        before = [chunk.sequence.num_completion_tokens for chunk in decodes]
        for chunk, first, result in zip(decodes, before, plans.step(decodes, prefills), strict=False):
            taken = chunk.sequence.num_completion_tokens - first
            num_right += taken - 1
            num_wrong += len(chunk.drafts) - (taken - 1)
            assert len(result.sampled) == 1 + len(chunk.drafts)
            for ours, theirs in zip(result.sampled[:taken], plain[chunk.sequence.request_id][1][first:], strict=False):
                assert ours.logprobs is not None
                assert ours.logprobs.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    for sequence in sequences:
        assert sequence.token_ids[sequence.num_prompt_tokens :] == plain[sequence.request_id][0], sequence.request_id
    assert num_right > 100 and num_wrong > 50


def test_before_min_tokens_no_stop_id_is_chosen(tenants: Tenants) -> None:
    texts = plain_texts(tenants, [request for request in requests(tenants) if request.sampling.min_tokens])
    assert all(token % 2 or token >= 150 for tokens, _ in texts.values() for token in tokens)

"""A GPU's choice is the CPU's: the same tokens for the same logits, options and seeds, and the same rows refused."""

from __future__ import annotations

import random

import pytest
import torch

from engine.cuda.in_order import InOrderAccelerator
from engine.cuda.nvidia import CudaAccelerator
from engine.cuda.sampling import TritonChoice, penalize_rows_
from engine.cuda.transfers import PinnedTransfers
from engine.protocol import GenerateRequest, SamplingParams
from engine.sampling.choice import choose_on_host
from engine.sampling.logits_processors import Row, adjust_
from engine.sampling.sampler import Sampler
from engine.sequence import Sequence

VOCAB = 300
KINDS = (
    SamplingParams(9, temperature=0.0),
    SamplingParams(9, temperature=1e-9),
    SamplingParams(9, temperature=1.0),
    SamplingParams(9, temperature=0.7, top_k=5),
    SamplingParams(9, temperature=1.3, top_p=0.8),
    SamplingParams(9, temperature=1.0, top_k=50, top_p=0.95, min_p=0.02),
)

TEXT = [1, 2, 3, 3, 9]
ADJUSTED = (
    SamplingParams(9, temperature=0.0, num_logprobs=3, logit_bias={5: 4.0, 3: -100.0}),
    SamplingParams(9, temperature=0.0, num_logprobs=0, repetition_penalty=1.3, min_tokens=4),
    SamplingParams(9, temperature=0.0, num_logprobs=5, presence_penalty=0.5, frequency_penalty=0.7),
    SamplingParams(9, temperature=1.0, num_logprobs=5, logit_bias={2: 9.0}, frequency_penalty=-1, repetition_penalty=2),
)


@pytest.fixture(scope="module")
def transfers() -> PinnedTransfers:
    cuda = torch.cuda.is_available()
    return PinnedTransfers(CudaAccelerator(torch.device("cuda")) if cuda else InOrderAccelerator())


def rows(count: int) -> list[Row]:
    rnd = random.Random(3)
    made = []
    for i in range(count):
        request = GenerateRequest("r", [1], KINDS[i % len(KINDS)], "t")
        seed = rnd.choice([0, 7, (1 << 63) + 5, (1 << 64) - 1])
        made.append(Row(Sequence(request, [1] * (1 + i % 3), seed, 0.0)))
    return made


def test_tokens_are_those_of_the_cpu(transfers: PinnedTransfers) -> None:
    asked = rows(18)
    logits = torch.randn(len(asked), VOCAB, generator=torch.Generator().manual_seed(2)) * 3
    logits[4, 8], logits[5, 9] = torch.nan, torch.inf
    device = transfers.put(logits.numpy())
    chosen = TritonChoice(transfers)(device, asked).cpu()
    expected = choose_on_host(logits.clone(), asked)
    assert chosen.tolist() == expected.tolist()
    assert chosen[[4, 5]].tolist() == [-1, -1]


def test_every_option_and_the_log_probabilities_pass_through_pinned_memory(transfers: PinnedTransfers) -> None:
    asked = [*rows(3), *(Row(Sequence(GenerateRequest("r", [1, 2], p, "t"), TEXT, 0, 0.0)) for p in ADJUSTED)]
    logits = torch.randn(len(asked), VOCAB, generator=torch.Generator().manual_seed(4))
    logits[:, TEXT] += 3
    on_gpu = Sampler((2,), transfers, TritonChoice(transfers), penalize_rows_).choose(
        transfers.put(logits.numpy()).clone(), asked
    )
    on_cpu = Sampler((2,)).choose(logits.clone(), asked)
    assert [s.token_id for s in on_gpu] == [s.token_id for s in on_cpu]
    for ours, theirs in zip(on_gpu[3:], on_cpu[3:], strict=True):
        assert ours.logprobs is not None and theirs.logprobs is not None
        assert ours.logprobs.top_token_ids == theirs.logprobs.top_token_ids
        assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-5)


@pytest.mark.parametrize("params", [*ADJUSTED, SamplingParams(9)], ids=range(len(ADJUSTED) + 1))
def test_penalties_and_biases_are_those_of_the_cpu(transfers: PinnedTransfers, params: SamplingParams) -> None:
    asked = [*rows(2), Row(Sequence(GenerateRequest("r", [1, 2], params, "t"), TEXT, 0, 0.0), drafts=(7,))]
    logits = torch.randn(len(asked), VOCAB, generator=torch.Generator().manual_seed(6))
    on_gpu = transfers.put(logits.numpy()).clone()
    penalize_rows_(on_gpu, asked, transfers.put)
    adjust_(logits, asked, torch.from_numpy)
    torch.testing.assert_close(on_gpu.cpu(), logits)

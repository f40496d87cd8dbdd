"""The whole engine on the GPU's path answers what the CPU's path answers, and what peft computes.

On a machine without a GPU the kernels are interpreted, and steps are computed at once.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence

import pytest
import torch

from engine.bench.shape.rig import Rig, decode_plan, rig_config
from engine.bench.shape.sizes import DRY, SHAPES
from engine.bench.shape.weights import RandomAdapters
from engine.config import EngineConfig, ModelConfig
from engine.cuda.setup import build_cuda
from engine.device import Device
from engine.protocol import EngineStats, GenerateRequest
from engine.sequence import Plan
from tests.engine.cuda.recording import CountingCudaAccelerator, RecordingAccelerator
from tests.engine.harness import Answer, collect, engine_config, greedy, run_engine, run_events
from tests.engine.lora.tenants import Tenants
from tests.engine.reference import TIE, Claim, assert_greedy_follows

TOKEN_BYTES = 2 * 2 * 1 * 16 * 4  # keys and values, layers, heads, head size, fp32


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("tenants"), "llama-two-heads")


def accelerator_here() -> CountingCudaAccelerator | RecordingAccelerator:
    return CountingCudaAccelerator() if torch.cuda.is_available() else RecordingAccelerator()


def build(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    return build_cuda(config, model, dtype, accelerator_here())


def small(tenants: Tenants, **changes: object) -> EngineConfig:
    """Return a configuration with few rows and a short context, since an interpreted kernel takes a millisecond a
    program."""
    sizes: dict[str, object] = {"max_batched_tokens": 16, "max_num_seqs": 3, "max_adapters": 4, "max_adapter_rank": 16}
    return engine_config(tenants.model_dir, tenants.store_dir, **(sizes | {"max_model_len": 96} | changes))


def tenant_of(request: GenerateRequest, tenants: Tenants) -> str:
    return next(name for name, digest in tenants.digests.items() if digest == request.adapter)


def assert_equal_to_peft(tenants: Tenants, requests: Sequence[GenerateRequest], answers: dict[str, Answer]) -> None:
    for request in requests:
        answer = answers[request.request_id]
        claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
        assert len(answer.token_ids) == request.sampling.max_tokens
        assert_greedy_follows(tenants.models[tenant_of(request, tenants)], [claim], tolerance=1e-4)


def assert_same_texts(ours: dict[str, Answer], theirs: dict[str, Answer]) -> None:
    """Check that answers are equal up to a tie, after which two texts may differ."""
    assert ours.keys() == theirs.keys()
    for name, answer in ours.items():
        for token, expected, scored in zip(
            answer.token_ids, theirs[name].token_ids, theirs[name].logprobs, strict=True
        ):
            if token != expected:
                best, second = scored.top_logprobs
                assert best - second <= TIE, name
                break


def test_chunks_decodes_mixed_ranks_and_reused_prefixes_equal_the_cpu(tenants: Tenants) -> None:
    """Prompts longer than a step, and adapters of four kinds beside the base, arrive while others run; every step is
    replayed."""
    rnd = random.Random(5)
    names = ["", "attention-r4", "all-rslora-r16", "mlp-r7", "patterns"]
    prompts = [[rnd.randrange(199) for _ in range(length)] for length in (33, 3, 20, 1, 9)]
    first = [
        greedy(f"{name or 'base'}", prompt, 4, adapter=tenants.digests[name])
        for name, prompt in zip(names, prompts, strict=True)
    ]
    again = [
        greedy("again", [*prompts[0], 5, 6], 4),
        greedy("again r16", [*prompts[2], 7], 4, adapter=first[2].adapter),
    ]
    config = small(tenants)
    later = {3: first[3:], 8: again}
    adapters = [request.adapter for request in first[1:]]  # there from the start, so that steps are the same each time
    accelerator = accelerator_here()
    events = run_events(config, first[:3], later, adapters, lambda *asked: build_cuda(*asked, accelerator))
    answers = collect(events)
    assert_equal_to_peft(tenants, [*first, *again], answers)
    assert_same_texts(answers, run_engine(config, first[:3], later, preload=adapters))
    assert answers["again"].final.usage.cached_tokens == 32
    assert answers["again r16"].final.usage.cached_tokens == 16
    stats = [event for event in events if isinstance(event, EngineStats)][-1]
    assert accelerator.num_replays == sum(stats.step_counts) > 0


def test_preemption_and_drafts_lose_and_repeat_nothing(tenants: Tenants) -> None:
    """Two requests share a cache that is too small for both, with repetitive prompts and up to two drafts a step."""
    digest = tenants.digests["attention-r4"]
    config = small(tenants, kv_cache_bytes=4 * 8 * TOKEN_BYTES, block_size=8, max_num_seqs=2, num_draft_tokens=2)
    prompt = [7, 8, 9, 7, 8, 9, 7]
    requests = [greedy("base", prompt, 13), greedy("r4", prompt, 13, adapter=digest)]
    events = run_events(config, requests, preload=[digest], build_device=build)
    answers = collect(events)
    assert_equal_to_peft(tenants, requests, answers)
    assert_same_texts(answers, run_engine(config, requests, preload=[digest]))
    stats = [event for event in events if isinstance(event, EngineStats)][-1]
    assert stats.preemptions_total > 0 and stats.draft_tokens_total > 0


def test_steps_launched_ahead_say_what_a_wait_for_every_token_says(tenants: Tenants) -> None:
    """Requests with a seed, a stop token and log-probabilities run beside a long prompt; one with a penalty makes all
    wait."""
    digest = tenants.digests["attention-r4"]
    drawn = {"temperature": 0.8, "top_p": 0.9, "seed": 3}
    first = [
        greedy("drawn", [5, 6, 7], 8, **drawn),
        greedy("adapted", [8, 9], 8, adapter=digest, **drawn),
        greedy("long", [7, 3] * 10, 2),
    ]
    config = small(tenants)
    alone = run_engine(config, first, preload=[digest])
    stop = alone["drawn"].token_ids[4]
    first[0] = greedy("drawn", [5, 6, 7], 8, stop_token_ids=[stop], **drawn)
    later = {5: [greedy("penalized", [1, 2], 3, presence_penalty=0.5)]}
    plans: list[Plan] = []
    ours = collect(run_events(config, first, later, [digest], build, plans.append))
    assert ours["drawn"].token_ids == alone["drawn"].token_ids[: alone["drawn"].token_ids.index(stop)]
    assert ours["drawn"].final.finish_reason == "stop"
    assert_same_texts(ours, run_engine(config, first, later, preload=[digest]))
    followed = [any(chunk.follows for chunk in plan.chunks) for plan in plans]
    waits = [any(chunk.sequence.request_id == "penalized" for chunk in plan.decodes) for plan in plans]
    assert any(followed) and any(waits) and not any(map(operator.and_, followed, waits))


def test_an_adapter_that_left_its_slot_is_found_again_and_others_take_the_slot(tenants: Tenants) -> None:
    config = small(tenants, max_adapters=1)
    names = ["attention-r4", "mlp-r7", "attention-r4"]
    requests = [greedy(f"{i} {name}", [i + 1], 3, adapter=tenants.digests[name]) for i, name in enumerate(names)]
    answers = run_engine(config, requests, build_device=build)
    assert_equal_to_peft(tenants, requests, answers)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what the host waits for is recorded on a CPU")
def test_the_host_waits_for_half_of_a_step_and_for_its_tokens_alone() -> None:
    """The host waits for a step to be halfway, for its tokens, and for the copy of the step before, and for nothing
    else."""
    accelerator = RecordingAccelerator()
    model, sizes = SHAPES["tiny"], DRY._replace(streams=1)
    rig = Rig(rig_config(model, sizes, torch.float32), model, torch.float32, accelerator)
    rig.open(RandomAdapters(model, torch.float32, [sizes.rank], pin=False))
    sequence = rig.start([1, 2, 3], 4, adapter="0")
    rig.prefill([sequence])
    del accelerator.waited[:], accelerator.journal[:]
    before = len(accelerator.events)
    first = rig.launch(decode_plan([sequence]))
    copied, halfway, tokens = before, before + 1, before + 2
    assert len(accelerator.events) == tokens + 1
    (copied_before,) = accelerator.waited
    assert copied_before < before
    arrivals = rig.pool.adapter(0).arrivals
    on_device = [entry.event for entry in accelerator.journal if (entry.stream, entry.order) == ("compute", "wait")]
    assert on_device == [accelerator.events.index(arrivals[-1])]  # type: ignore[arg-type]
    assert [entry.event for entry in accelerator.journal if entry.order == "record"] == [copied, halfway, tokens]
    first.await_half()
    second = rig.launch(decode_plan([sequence]))
    first.wait()
    second.wait()
    assert accelerator.waited == [copied_before, halfway, copied, tokens, tokens + 3]
    rig.pool.close()

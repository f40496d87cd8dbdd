"""Requests through the stepping loop, from command to final, with a model whose answers are known in advance."""

from __future__ import annotations

import time

import numpy as np
import pytest

from engine.mailbox import ServedElsewhere, Wake
from engine.protocol import Abort, Service, StepOutputs, UnloadAdapter
from tests.engine.harness import collect
from tests.engine.scheduling.scheduler_model import (
    VOCAB,
    expected_choice,
    expected_embedding,
    expected_prompt_logprobs,
)
from tests.engine.scripted_core import PROMPT, SlowCompiler, deltas, final, request, run_core, stats, text


def test_choices_share_the_prompt_and_end_with_one_final() -> None:
    events, plans = run_core(request(n=3, max_tokens=6))
    for index in range(3):
        assert text(events, index=index) == expected_choice(request(), seed=5 + index).shown
        assert [delta.finish_reason for delta in deltas(events) if delta.index == index][-1] == "length"
    usage = final(events).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (20, 18, 0)
    # 16 and 4 of the prompt for the first choice, the last block of it for each of the others
    assert sorted(chunk.num_tokens for plan in plans for chunk in plan.prefills) == [4, 4, 4, 16]


def test_the_next_turn_of_a_conversation_is_found_in_the_cache() -> None:
    completion = expected_choice(request(), seed=5).shown
    second = request("s", prompt_token_ids=[*PROMPT, *completion, 1, 2])
    other = request("o", prompt_token_ids=[*PROMPT, *completion, 1, 2], tenant="another")
    longer = request("longer", prompt_token_ids=[40], max_tokens=12)
    events, _ = run_core(request(), longer, later={8: [second, other]})
    assert final(events).usage.cached_tokens == 0
    assert final(events, "s").usage.cached_tokens == 24  # 25 of 28 were computed before, of which whole blocks count
    assert final(events, "o").usage.cached_tokens == 0
    assert text(events, "s") == expected_choice(second, seed=5).shown
    last = stats(events)
    assert (last.prefix_query_tokens_total, last.prefix_hit_tokens_total) == (1 + 20 + 28 + 28, 24)


def test_a_tenant_that_was_served_elsewhere_comes_after_one_that_was_not() -> None:
    first, second, other = request("first"), request("second"), request("other", tenant="u")
    told = ServedElsewhere({"t": Service(completion_tokens=1e6)})
    for elsewhere, last in (([], "other"), ([told], "second")):  # between equal requests the cached prompt goes first
        events, _ = run_core(first, second, other, later={2: elsewhere}, max_num_seqs=1)
        finals = [final.request_id for event in events if isinstance(event, StepOutputs) for final in event.finals]
        assert finals[0] == "first"
        assert finals[-1] == last


def test_one_choice_can_be_aborted_and_its_kept_tokens_count() -> None:
    events, _ = run_core(request(n=2, max_tokens=10), later={5: [Abort("r", num_kept_tokens=1, index=0)]})
    assert len(text(events, index=0)) < 10
    assert text(events, index=1) == expected_choice(request(max_tokens=10), seed=6).shown
    usage = final(events).usage
    assert usage.completion_tokens == 1 + 10
    assert usage.discarded_tokens == len(text(events, index=0)) - 1


def test_a_choice_that_has_ended_can_still_lose_tokens_past_a_stop() -> None:
    texts = [expected_choice(request(max_tokens=12), seed).shown for seed in (5, 6)]
    stop = next(token for token in texts[0][2:] if token not in texts[1])
    asked = request(n=2, max_tokens=12, stop_token_ids=[stop])
    first, second = (expected_choice(asked, seed) for seed in (5, 6))
    assert len(first.produced) < len(second.produced) == 12
    events, _ = run_core(asked, later={12: [Abort("r", num_kept_tokens=2, index=0)]})
    usage = final(events).usage
    assert (usage.completion_tokens, usage.discarded_tokens) == (2 + 12, len(first.produced) - 2)


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_the_token_that_ended_a_choice_comes_beside_those_of_its_text(num_draft_tokens: int) -> None:
    stop = expected_choice(request(max_tokens=12), 5).shown[4]
    for asked in (
        request(max_tokens=12, stop_token_ids=[stop]),
        next(
            ended
            for first in range(VOCAB)
            if (ended := request(max_tokens=12, ignore_eos=False, prompt_token_ids=[first, 1]))
            and expected_choice(ended, 5).reason == "stop"
        ),
        request(),
    ):
        expected = expected_choice(asked, 5)
        events, _ = run_core(asked, num_draft_tokens=num_draft_tokens)
        last = deltas(events)[-1]
        ended_by = [] if last.stop_token_id is None else [last.stop_token_id]
        assert text(events) + ended_by == expected.produced
        assert len(ended_by) == (expected.reason == "stop")
        assert all(delta.stop_token_id is None for delta in deltas(events)[:-1])
        assert final(events).usage.completion_tokens == last.num_completion_tokens == len(expected.produced)


def test_embeddings_are_of_unit_length_and_the_only_output() -> None:
    for pooling in ("mean", "last"):
        asked = request(max_tokens=0, pooling=pooling)
        events, _ = run_core(request("warm"), later={4: [asked]})
        assert not deltas(events)
        ended = final(events)
        assert ended.finish_reason == "stop" and ended.embedding is not None
        np.testing.assert_allclose(np.frombuffer(ended.embedding, "<f4"), expected_embedding(asked), rtol=1e-5)


def test_prompt_logprobs_come_once_and_whole_though_the_prompt_is_cached() -> None:
    for max_tokens in (0, 4):
        asked = request(max_tokens=max_tokens, num_prompt_logprobs=0)
        events, _ = run_core(request("warm"), later={4: [asked]})
        first, *rest = deltas(events)
        assert first.prompt_logprobs == expected_prompt_logprobs(asked)
        assert all(delta.prompt_logprobs is None for delta in rest)
        assert final(events).finish_reason == "length"
        assert final(events).usage.completion_tokens == max_tokens


def test_prompt_logprobs_come_once_and_whole_though_the_prompt_is_preempted() -> None:
    rated = request("rated", prompt_token_ids=PROMPT * 2, max_tokens=3, num_prompt_logprobs=0)
    events, plans = run_core(request(max_tokens=30), rated, num_blocks=17, max_batched_tokens=4)
    starts = [c.first for plan in plans for c in plan.prefills if c.sequence.request_id == "rated"]
    assert starts != sorted(starts)  # some of the prompt was computed again
    first, *rest = deltas(events, "rated")
    assert first.prompt_logprobs == expected_prompt_logprobs(rated)
    assert all(delta.prompt_logprobs is None for delta in rest)
    assert text(events, "rated") == expected_choice(rated, seed=5).shown


def test_drafts_change_how_fast_a_text_comes_and_nothing_else() -> None:
    prompt = [*PROMPT, *expected_choice(request(), seed=5).shown]
    looping = request(prompt_token_ids=[*prompt, *PROMPT[:2]], max_tokens=20)
    plain, _ = run_core(looping)
    drafted, plans = run_core(looping, num_draft_tokens=4)
    assert text(drafted) == text(plain)
    usage = final(drafted).usage
    assert usage.draft_tokens == sum(len(chunk.drafts) for plan in plans for chunk in plan.decodes) > 0
    assert usage.completion_tokens == 20


def test_of_drafts_no_more_are_accepted_than_tokens_are_kept() -> None:
    predicted = request(max_tokens=12, predicted_token_ids=expected_choice(request(max_tokens=12), seed=5).shown)
    aborted = {4: [Abort("r", num_kept_tokens=2, index=0)]}
    usage = final(run_core(predicted, num_draft_tokens=4, later=aborted)[0]).usage
    assert usage.completion_tokens == usage.accepted_draft_tokens == 2 < usage.draft_tokens


def test_a_grammar_is_compiled_first_and_ends_the_text() -> None:
    asked = request(grammar={"kind": "regex", "source": "x"}, max_tokens=40)
    compiler = SlowCompiler()
    events, _ = run_core(asked, Wake(), compiler=compiler)
    expected = expected_choice(asked, seed=5)
    assert (text(events), final(events).finish_reason) == (expected.shown, expected.reason)
    assert compiler.closed


def test_a_grammar_that_does_not_compile_fails_its_own_request() -> None:
    bad = request("bad", grammar={"kind": "regex", "source": "bad"})
    events, _ = run_core(bad, request(), compiler=SlowCompiler())
    error = final(events, "bad").error
    assert error is not None and (error.code, error.message) == ("invalid_request", "grammar: bad is not supported")
    assert final(events, "bad").usage.prompt_tokens == 0
    assert final(events).finish_reason == "length"


def test_a_request_aborted_while_its_grammar_compiles_is_gone_for_good() -> None:
    bad = request(grammar={"kind": "regex", "source": "bad"})
    again = request(grammar={"kind": "regex", "source": "x"}, max_tokens=40)
    compiler = SlowCompiler()
    events, _ = run_core(bad, Abort("r"), again, compiler=compiler)
    assert len(compiler.withdrawn) == 1
    aborted, ended = collect(events)["r"].finals
    assert (aborted.finish_reason, aborted.usage.prompt_tokens) == ("abort", 0)
    assert ended.finish_reason == expected_choice(again, seed=5).reason


def test_without_a_compiler_grammars_are_refused() -> None:
    events, _ = run_core(request(grammar={"kind": "json_object"}))
    error = final(events).error
    assert error is not None and error.code == "invalid_request" and "grammar" in error.message


def test_what_cannot_be_served_is_refused_by_the_name_of_its_field() -> None:
    wrong: dict[str, dict[str, object]] = {
        "n": {"n": 5},
        "max_tokens": {"max_tokens": 0},
        "pooling": {"pooling": "mean", "max_tokens": 3},
        "logit_bias": {"logit_bias": {VOCAB: 1.0}},
        "biases": {"logit_bias": {1: float("inf")}},
        "num_logprobs": {"num_logprobs": 21},
        "num_prompt_logprobs": {"num_prompt_logprobs": 21},
        "min_tokens": {"min_tokens": 7},
        "temperature": {"temperature": float("nan")},
        "top_k": {"top_k": 2**63},
        "top_p": {"top_p": 1.5},
        "repetition_penalty": {"repetition_penalty": 0.0},
        "stop_token_ids": {"stop_token_ids": [-1]},
        "prompt_token_ids": {"prompt_token_ids": [1] * 60},
        "weight": {"weight": float("nan")},
    }
    for field, change in wrong.items():
        error = final(run_core(request(**change))[0]).error
        assert error is not None and error.code == "invalid_request" and field in error.message, field


def test_a_full_queue_says_when_to_come_back() -> None:
    events, _ = run_core(*(request(f"r{i}") for i in range(8)), later={9: [request(f"s{i}") for i in range(10)]})
    refused = [answer.final.error for answer in collect(events).values() if answer.final.error is not None]
    assert refused and all(error.code == "queue_full" and 1 <= (error.retry_after_s or 0) <= 30 for error in refused)


def test_the_wait_for_an_adapter_is_counted_apart() -> None:
    events, _ = run_core(request(adapter="x"), request("base"))
    usage = final(events).usage
    assert 0 < usage.adapter_wait_ms <= usage.queue_ms
    assert usage.adapter_load_bytes == 1
    assert final(events, "base").usage.adapter_wait_ms == 0


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_commands_during_a_step_change_nothing_for_requests_that_they_do_not_end(
    ahead: bool,
) -> None:
    """A whole request and one choice are aborted, a new request takes their blocks, and an adapter in use is
    unloaded."""
    staying, adapted = request("staying", max_tokens=12), request("adapted", max_tokens=12, adapter="a")
    later: dict[int, list[object]] = {
        4: [Abort("gone"), UnloadAdapter("a"), request("new", seed=9)],
        6: [Abort("half", index=1), UnloadAdapter("a")],
    }
    asked = [staying, adapted, request("gone", max_tokens=40), request("half", n=2, max_tokens=12, seed=7)]
    events, _ = run_core(*asked, later=later, ahead=ahead, num_blocks=48, max_num_seqs=6)
    assert text(events, "staying") == expected_choice(staying, seed=5).shown
    assert text(events, "adapted") == expected_choice(adapted, seed=5).shown
    assert text(events, "half", index=0) == expected_choice(asked[3], seed=7).shown
    assert text(events, "new") == expected_choice(request("new"), seed=9).shown
    assert final(events, "gone").finish_reason == "abort"
    assert len(text(events, "half", index=1)) < 12


def test_the_next_step_is_launched_when_the_last_one_is_halfway_and_before_its_results_are_waited_for() -> None:
    journal: list[str] = []
    run_core(request(max_tokens=3), journal=journal)
    assert journal == [
        *("launch 1", "half 1", "launch 2", "results 1"),  # the prompt
        *("half 2", "launch 3", "results 2"),
        *("half 3", "launch 4", "results 3"),
        *("half 4", "results 4"),
    ]


def test_results_do_not_wait_for_a_launch_that_takes_long() -> None:
    """A request that has ended by then is left out of the launch."""
    stop = expected_choice(request(), seed=5).shown[1]
    asked = [request(stop_token_ids=[stop]), request("other", prompt_token_ids=[1, 2], max_tokens=8)]
    journal: list[str] = []
    events, plans = run_core(*asked, slow=True, journal=journal)
    order = [entry for entry in journal if not entry.startswith("half")]
    assert order == [f"{what} {step}" for step in range(1, len(plans) + 1) for what in ("launch", "results")]
    assert [len(plan.decodes) for plan in plans if plan.decodes][-5:] == [1] * 5
    assert text(events) == expected_choice(asked[0], seed=5).shown
    assert text(events, "other") == expected_choice(asked[1], seed=5).shown


def test_a_sequence_that_ends_by_length_computes_no_row_in_vain_and_leaves_its_place_at_once() -> None:
    asked = [request(f"r{i}", prompt_token_ids=[i], max_tokens=5 + i % 4) for i in range(12)]
    steps = {}
    for ahead in (False, True):
        events, plans = run_core(*asked, max_num_seqs=3, max_waiting=40, ahead=ahead)
        assert sum(plan.num_tokens for plan in plans) == sum(each.sampling.max_tokens for each in asked)
        assert all(text(events, each.request_id) == expected_choice(each, seed=5).shown for each in asked)
        steps[ahead] = len(plans)
    assert steps[True] == steps[False]


def test_no_sequence_goes_on_while_its_next_token_depends_on_one_that_is_not_known() -> None:
    """A grammar and a penalty depend on a token; a sequence's last token is one that nothing depends on."""
    plain, grammar = request("plain", max_tokens=20), {"kind": "regex", "source": "x"}
    for options in ({"grammar": grammar}, {"presence_penalty": 0.5}):
        seed = next(s for s in range(99) if len(expected_choice(request(max_tokens=3, **options), s).shown) == 3)
        asked = request("asked", max_tokens=3, seed=seed, **options)
        _, plans = run_core(plain, asked, compiler=SlowCompiler())
        ahead = [any(chunk.follows for chunk in plan.decodes) for plan in plans]
        decides = [any(chunk.sequence.request_id == "asked" for chunk in plan.decodes) for plan in plans]
        first, last = decides.index(True), len(decides) - 1 - decides[::-1].index(True)
        assert not any(ahead[first : last + 1]) and ahead[last + 1]
        assert any(ahead)


def test_steps_that_overlap_are_timed_from_one_outcome_to_the_next() -> None:
    start_s = time.perf_counter()
    events, plans = run_core(request(max_tokens=40))
    elapsed_s = time.perf_counter() - start_s
    assert sum(stats(events).step_counts) == len(plans)
    assert 0 < stats(events).step_seconds_total <= elapsed_s

"""The engine's statistics count what the engine did, and no figure stays zero."""

from __future__ import annotations

from engine.protocol import STEP_BUCKETS_S, BatchTerms, EngineStats, LoadAdapter
from tests.engine.scripted_core import SlowCompiler, final, request, run_core, stats

OF_THE_SERVER = {"unacked_usage", "dropped_usage_total", "ended_prompt_tokens_total", "ended_completion_tokens_total"}


def test_steps_and_tokens_are_counted_once() -> None:
    events, plans = run_core(request(n=2, max_tokens=6))
    last = stats(events)
    assert sum(last.step_counts) == len(plans)
    assert len(last.step_counts) == len(STEP_BUCKETS_S) + 1
    assert last.step_seconds_total > 0
    assert last.prompt_tokens_total == sum(chunk.num_tokens for plan in plans for chunk in plan.prefills)
    assert last.generation_tokens_total == 12
    assert (last.num_running, last.num_waiting, last.kv_blocks_used, last.kv_blocks_total) == (0, 0, 0, 64)


def test_both_tiers_of_adapters_are_counted() -> None:
    """Three adapters take turns on two slots beside a request of the base model, and the first adapter comes back."""
    turns = {1: "a", 10: "b", 20: "c", 30: "a"}
    later = {step: [request(f"{name} at {step}", adapter=name)] for step, name in turns.items()}
    events, _ = run_core(request("base", max_tokens=42), later=later)
    last = stats(events)
    loaded = [final(events, f"{name} at {step}").usage.adapter_load_bytes for step, name in turns.items()]
    assert last.adapter_loads_total == last.adapter_load_bytes_total == sum(loaded) == 4
    assert (last.adapter_evictions_total, last.adapter_host_hits_total) == (2, 1)
    assert last.adapter_load_seconds_total > 0
    assert (last.adapter_slots_used, last.adapter_slots_total, last.adapter_bytes_used) == (2, 2, 2)
    assert last.adapter_host_bytes == 3
    assert len(last.resident_adapters) == 2 and last.adapters_waiting == 0


def test_grammars_are_counted_by_how_they_end_with_the_time_they_took() -> None:
    good = request("good", grammar={"kind": "regex", "source": "x"}, max_tokens=40)
    bad = request("bad", grammar={"kind": "regex", "source": "bad"})
    events, _ = run_core(good, bad, request(), compiler=SlowCompiler())
    last = stats(events)
    assert (last.grammars_compiled_total, last.grammars_refused_total, last.grammars_compiling) == (1, 1, 0)
    assert last.grammar_wait_seconds_total > 0


def test_no_figure_stays_zero() -> None:
    """The run has little memory, two slots for three adapters, drafts, a grammar of each kind, and a prompt that comes
    twice."""
    commands = [
        request("r", max_tokens=30, n=2),
        *(request(f"of {name}", adapter=name, tenant=name, max_tokens=12) for name in ("a", "b", "c")),
        request("good", grammar={"kind": "regex", "source": "x"}),
        request("bad", grammar={"kind": "regex", "source": "bad"}),
    ]
    later = {
        6: [
            request("same"),
            request("guessed", prompt_token_ids=[1, 2, 3] * 6, max_tokens=40, seed=0),
            request("x", grammar={"kind": "regex", "source": "x"}),
            LoadAdapter("d"),
        ],
        **{step: [request(f"{name} again", adapter=name)] for step, name in ((40, "a"), (60, "b"), (80, "c"))},
    }
    events, _ = run_core(
        *commands, later=later, compiler=SlowCompiler(), num_blocks=16, num_draft_tokens=4, max_waiting=20
    )
    batch = [request(f"batch {i}", prompt_token_ids=[i] * 9, max_tokens=40, batch=BatchTerms()) for i in range(3)]
    large = request("large", prompt_token_ids=[9] * 40, max_tokens=20)
    others, _ = run_core(*batch, later={20: [large]}, num_blocks=16)
    seen = [event for event in [*events, *others] if isinstance(event, EngineStats)]
    fields = set(EngineStats.__struct_fields__) - OF_THE_SERVER
    empty = {field for field in fields if not any(getattr(picture, field) for picture in seen)}
    assert not empty
    assert final(events, "of a").usage.adapter_wait_ms > 0

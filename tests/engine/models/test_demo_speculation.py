"""On the demo model in fp32, drafts leave greedy texts as they are, and neighbors leave seeded texts as they are.

Only the first layers are used, all of them with --full.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import msgspec
import pytest

from adapters.demo import DEMO
from adapters.store import AdapterStore
from engine.config import EngineConfig
from engine.protocol import GenerateRequest
from tests.demo import NUM_LAYERS, QUESTIONS, chat_ids, demo_model_dir, first_layers
from tests.engine.harness import Answer, engine_config, greedy, run_engine
from tests.engine.reference import TIE

# Answers that quote their question give a drafter something to find.
FRAMES = (
    "{}",
    "Repeat this question three times: {}",
    "Answer in a list of short lines: {}",
    "Rewrite this in capital letters, then in small ones: {}",
    "{} Say it in one sentence, then say the same sentence again.",
)


class Demo:
    """The engine's configuration, and the digests of the base ("") and each adapter."""

    def __init__(self, folder: Path, full: bool) -> None:
        model_dir, paths = demo_model_dir(), [demo.path for demo in DEMO]
        if not full:
            model_dir = first_layers(model_dir, folder / "model", NUM_LAYERS)
            paths = [first_layers(path, folder / path.name, NUM_LAYERS) for path in paths]
        store = AdapterStore(folder / "store")
        self.digests = ["", *(store.add(path) for path in paths)]
        self.config: EngineConfig = engine_config(
            model_dir,
            folder / "store",
            kv_cache_bytes=(256 if full else 32) << 20,
            num_threads=0 if full else 1,  # beside others more threads only wait
            max_num_seqs=32,
        )

    def prompt(self, number: int) -> list[int]:
        question, frame = list(product(QUESTIONS, FRAMES))[number]
        return chat_ids(frame.format(question))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, full: bool) -> Demo:
    return Demo(tmp_path_factory.mktemp("demo"), full)


def assert_same_text(plain: Answer, drafted: Answer) -> None:
    """Check that two answers are equal up to a tie, after which they may differ."""
    for ours, theirs, scored in zip(drafted.token_ids, plain.token_ids, plain.logprobs, strict=False):
        if ours != theirs:
            best, second = scored.top_logprobs
            assert best - second <= TIE
            return
    assert len(drafted.token_ids) == len(plain.token_ids)


def test_speculative_greedy_texts_equal_plain_ones(demo: Demo, full: bool) -> None:
    """The base and each adapter answer prompts in turn, 100 at full size."""
    num_prompts, num_tokens = (100, 64) if full else (4, 18)
    asked = [
        greedy(f"r{i}", demo.prompt(i), num_tokens, adapter=demo.digests[i % len(demo.digests)], ignore_eos=True)
        for i in range(num_prompts)
    ]
    plain = run_engine(demo.config, asked)
    drafted = run_engine(msgspec.structs.replace(demo.config, num_draft_tokens=4), asked)
    for request in asked:
        assert_same_text(plain[request.request_id], drafted[request.request_id])
    usages = [answer.final.usage for answer in drafted.values()]
    num_drafts, num_accepted = sum(u.draft_tokens for u in usages), sum(u.accepted_draft_tokens for u in usages)
    print(f"{num_accepted} of {num_drafts} drafts accepted in {num_prompts * num_tokens} tokens")
    assert 0 < num_accepted < num_drafts
    same = [
        request for request in asked if plain[request.request_id].token_ids == drafted[request.request_id].token_ids
    ]
    assert len(same) >= 0.9 * len(asked)  # ties are rare


def test_a_seeded_text_is_the_same_alone_and_among_31_neighbors(demo: Demo, full: bool) -> None:
    num_asked, num_tokens = (12, 64) if full else (1, 6)  # long enough for all of the neighbors to have come
    longest = 1000 if full else 12
    neighbors = [seeded(demo, f"n{i}", i, num_tokens, longest) for i in range(31)]
    for number in range(num_asked):
        asked = seeded(demo, "asked", 50 + number, num_tokens, longest)
        alone = run_engine(demo.config, [asked])["asked"]
        later = {step: neighbors[8 + 4 * step : 12 + 4 * step] for step in range(2, 6)}
        among = run_engine(demo.config, [*neighbors[:8], asked, *neighbors[8:16]], later)["asked"]
        assert len(alone.token_ids) == num_tokens
        assert among.token_ids == alone.token_ids


def seeded(demo: Demo, name: str, number: int, num_tokens: int, longest: int) -> GenerateRequest:
    """Return a request with a seed and options of its own.

    longest: the most tokens of its prompt.
    """
    options: dict[str, object] = {"temperature": 0.7 + 0.1 * (number % 7), "top_p": 0.9 + 0.1 * (number % 2)}
    prompt = demo.prompt(number)[:longest]
    digest = demo.digests[number % len(demo.digests)]
    return greedy(name, prompt, num_tokens, adapter=digest, seed=number, ignore_eos=True, **options)

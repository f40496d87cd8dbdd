"""A step by the native kernels: near the same step by PyTorch's operations, for every family, with adapters.

The bits of a sequence depend on nothing but that sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.config import ModelConfig, load_model_config
from engine.config.cache_layout import layout_of
from engine.cpu.attention import PagedCache
from engine.cpu.native import NativeForward, NativePath, make_decoder
from engine.cpu.path import CpuPath
from engine.cpu.quantization import Format, makers
from engine.cpu.tables import AdapterTables
from engine.device import DevicePath
from engine.lora.layer import AdapterLayout, LoadedAdapter
from engine.mailbox import PauseFlag
from engine.models.checkpoint import load_weights
from engine.models.decoder import Decoder
from engine.models.weights import ModelWeights
from engine.sequence import Chunk, Plan
from engine.sequence import Sequence as Text
from kernels.cpu.library import installed
from tests.engine.harness import greedy
from tests.engine.models.tiny import FAMILIES, HYBRIDS, WITH_EXPERTS, save_tiny

library = installed()
pytestmark = pytest.mark.skipif(library is None, reason="the native kernels are not built: run make")
NUM_BLOCKS = 40
MAX_LENGTH = 160
CPU = torch.device("cpu")

NOT_NATIVE = {*WITH_EXPERTS, *HYBRIDS} - {"granite-hybrid-dense"}


def random_adapter(config: ModelConfig, ranks: dict[tuple[int, str], int], dtype: torch.dtype) -> LoadedAdapter:
    layout = AdapterLayout(ranks, config.projection_shapes())
    weights = (torch.randn(layout.num_elements) * 0.2).to(dtype)
    groups = layout.groups_of(weights)
    scalings = {key: tuple(0.5 + p for p in group.projections) for key, group in groups.items()}
    return LoadedAdapter(str(id(weights)), scalings, weights.nbytes, layout, weights, groups)


class Model:
    """A tiny model with quantized matrices, and three adapters on different modules."""

    def __init__(
        self, family: str, folder: Path, dtype: torch.dtype = torch.float32, quantized: Format = "int8"
    ) -> None:
        save_tiny(family, folder)
        self.config = load_model_config(folder)
        self.dtype = dtype
        linear, embedding, _ = makers(quantized, dtype)
        self.weights: ModelWeights = load_weights(
            folder, self.config, dtype, CPU, make_linear=linear, make_embedding=embedding
        )
        layers, names = range(self.config.num_layers), list(self.config.projection_shapes())
        self.adapters = [
            random_adapter(self.config, {(layer, name): 4 for layer in layers for name in names}, dtype),
            random_adapter(self.config, {(1, "v_proj"): 3, (0, "down_proj"): 5, (1, "q_proj"): 9}, dtype),
            random_adapter(self.config, {(0, name): 1 + i for i, name in enumerate(names)}, dtype),
        ]

    def native(self, path: str | None = None) -> NativePath:
        assert library is not None
        decoder = make_decoder(library, self.config, self.weights, NUM_BLOCKS, MAX_LENGTH, path)
        return NativePath(decoder, self.config, self.weights.lm_head, self.adapters.__getitem__)

    def torch(self) -> CpuPath:
        cache = PagedCache(self.config, NUM_BLOCKS * 16, MAX_LENGTH, self.dtype)
        tables = AdapterTables(8, self.dtype, 1 << 24)
        return CpuPath(Decoder(self.config, self.weights), cache, 16, self.adapters.__getitem__, tables)


def texts(*wanted: tuple[int, int | None], switch: int = 0) -> list[Text]:
    """Return sequences of these lengths and adapter slots, with interleaved cache blocks.

    switch: the length beyond which a sequence is a long one; 0: none is.
    """
    torch.manual_seed(7)
    made = []
    for number, (length, slot) in enumerate(wanted):
        tokens = torch.randint(0, 199, (length,)).tolist()
        text = Text(greedy(str(number), tokens, 8), tokens, 0, 0.0, adapter_slot=slot, is_long=0 < switch < length)
        text.block_tables = [list(range(1 + number, NUM_BLOCKS, len(wanted)))[: length // 16 + 2]]
        made.append(text)
    return made


@torch.inference_mode()
def step(path: DevicePath, decodes: Sequence[Chunk], prefills: Sequence[Chunk] = ()) -> Tensor:
    """Return the logits of every row."""
    plan = Plan(list(decodes), list(prefills))
    order = path.order(plan)
    plan = Plan([plan.decodes[place] for place in order], plan.prefills)
    rows = path.forward(plan, range(plan.num_tokens))
    logits = path.logits(rows).clone()
    parts = torch.split(logits, [chunk.num_tokens for chunk in plan.chunks])
    by_chunk = {id(chunk): part for chunk, part in zip(plan.chunks, parts, strict=True)}
    return torch.cat([by_chunk[id(chunk)] for chunk in (*decodes, *prefills)])


def with_tables(sequences: Sequence[Text], num_tables: int) -> list[Text]:
    """Return sequences with the same tokens and separate block tables, interleaved with each other."""
    made = []
    for text in sequences:
        again = Text(text.request, text.token_ids, 0, 0.0, adapter_slot=text.adapter_slot)
        again.block_tables = [[block * num_tables + i for block in text.block_tables[0]] for i in range(num_tables)]
        made.append(again)
    return made


def prompts(sequences: Sequence[Text]) -> list[Chunk]:
    """Return a chunk of each sequence with all tokens but the last."""
    return [Chunk.of(text, 0, len(text.token_ids) - 1) for text in sequences]


def last_tokens(sequences: Sequence[Text]) -> list[Chunk]:
    return [Chunk.of(text, len(text.token_ids) - 1, 1) for text in sequences]


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("quantized", ["int8", "int4"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NOT_NATIVE])
def test_every_family_is_computed_as_by_pytorch(family: str, quantized: Format, tmp_path: Path) -> None:
    model = Model(family, tmp_path, quantized=quantized)
    ours, theirs = model.native(), model.torch()
    switch = model.config.length_switch
    sequences = texts((5, None), (34, 0), (71, None), (17, 1), (2, 2), (50, 0), switch=switch)
    for decodes, prefills in [
        ([], prompts(sequences)),
        (last_tokens(sequences), []),
        (last_tokens(sequences[2:4]), []),
    ]:
        assert relative_error(step(ours, decodes, prefills), step(theirs, decodes, prefills)) < 1e-3


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_layers_that_share_a_cache_give_the_bits_of_layers_with_caches_of_their_own(
    family: str, tmp_path: Path
) -> None:
    """The bits are equal in steps of prompts, of decodes and of both, with more and with fewer blocks than before."""
    assert library is not None
    model = Model(family, tmp_path)
    windows = {layer: model.config.window(layer) for layer in range(model.config.num_layers)}
    layout = layout_of(windows, MAX_LENGTH)
    assert layout.num_tables > layout.depth == 1
    sequences = texts((34, 0), (71, None), (17, 1))
    divided = with_tables(sequences, layout.num_tables)
    alone = model.native()
    decoder = make_decoder(library, model.config, model.weights, 3 * NUM_BLOCKS, MAX_LENGTH, layout=layout)
    shared = NativePath(decoder, model.config, model.weights.lm_head, model.adapters.__getitem__)
    steps = [
        (step(alone, [], prompts(sequences[1:])), step(shared, [], prompts(divided[1:]))),
        (
            step(alone, last_tokens(sequences[1:]), prompts(sequences[:1])),
            step(shared, last_tokens(divided[1:]), prompts(divided[:1])),
        ),
        (step(alone, last_tokens(sequences[:1])), step(shared, last_tokens(divided[:1]))),
        (step(alone, last_tokens(sequences)), step(shared, last_tokens(divided))),
    ]
    for ours, theirs in steps:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral-window"])
def test_bfloat16_is_near_float32(family: str, tmp_path: Path) -> None:
    sequences = texts((34, 0), (71, None), (17, 1))
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(1)
        path = Model(family, tmp_path, dtype).native()
        step(path, [], prompts(sequences))
        found.append(step(path, last_tokens(sequences)))
    assert 0 < relative_error(found[1], found[0]) < 0.07


@pytest.mark.parametrize("quantized", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_sequence_has_the_same_bits_whatever_is_beside_it(
    dtype: torch.dtype, quantized: Format, tmp_path: Path
) -> None:
    """The bits are equal alone and among others, at once and in pieces, by one thread and by several, on every path."""
    assert library is not None
    model = Model("qwen3", tmp_path, dtype, quantized)
    sequences = texts((70, 0), (34, None), (21, 2), (100, 1), (40, 0))
    with threads(1):
        together = model.native()
        expected = step(together, [], prompts(sequences)), step(together, last_tokens(sequences))
    starts = [sum(chunk.num_tokens for chunk in prompts(sequences[:i])) for i in range(len(sequences) + 1)]
    for name in library.paths:
        for number in (1, 3):
            with threads(number):
                path = model.native(name)
                assert torch.equal(step(path, [], prompts(sequences)), expected[0])
                assert torch.equal(step(path, last_tokens(sequences)), expected[1])
    pieces = [[1, 5, 16, 47], [33], [7, 13], [64, 35], [39]]
    alone = model.native()
    with threads(2):
        for number, text in enumerate(sequences):
            first, rows = 0, []
            for count in pieces[number]:
                chunk = Chunk.of(text, first, count)
                rows.append(step(alone, [chunk], []) if count == 1 else step(alone, [], [chunk]))
                first += count
            assert torch.equal(torch.cat(rows), expected[0][starts[number] : starts[number + 1]])
            assert torch.equal(step(alone, last_tokens([text])), expected[1][number : number + 1])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_step_that_pauses_between_its_jobs_has_the_bits_of_one_that_does_not(family: str, tmp_path: Path) -> None:
    """Each pause lasts for a step of other sequences, which the pause does not change either."""
    model = Model(family, tmp_path)
    paused, others = texts((34, 0), (71, None)), texts((40, 1), (17, 2))
    alone, path = model.native(), model.native()
    for text in others:  # blocks of their own
        text.block_tables = [[block + 1 for block in text.block_tables[0][:3]]]
    expected = [step(alone, [], prompts(paused)), step(alone, last_tokens(paused))]
    among = [step(alone, [], prompts(others)), step(alone, last_tokens(others))]
    for text in others:
        text.block_tables = [[NUM_BLOCKS - 1 - block for block in text.block_tables[0]]]
    blocks = [block for text in (*paused, *others) for block in text.block_tables[0]]
    assert len(set(blocks)) == len(blocks)
    pause = PauseFlag()
    pause.ask()
    step(path, [], prompts(others))
    for number, chunks in enumerate((prompts(paused), last_tokens(paused))):
        with torch.inference_mode():
            plan = Plan([], chunks)
            forward = path.begin(plan, range(plan.num_tokens))
            num_pauses = 0
            assert forward is not None
            while not forward.go_on(pause):
                num_pauses += 1
                if num_pauses % 3 == 0:
                    assert torch.equal(step(path, [], prompts(others)), among[0])
                elif num_pauses % 3 == 1:
                    assert torch.equal(step(path, last_tokens(others)), among[1])
                else:
                    assert torch.equal(step(path, last_tokens(others[:1])), among[1][:1])
            assert num_pauses == 10 * model.config.num_layers - 1
            assert torch.equal(path.logits(forward.hidden), expected[number])


def test_a_step_pauses_once_its_time_is_over_or_a_pause_is_asked_for(tmp_path: Path) -> None:
    model = Model("llama", tmp_path)
    path, pause = model.native(), PauseFlag()
    plan = Plan([], prompts(texts((34, 0))))

    def begun() -> NativeForward:
        forward = path.begin(plan, [32])
        assert forward is not None
        return forward

    assert begun().go_on(pause)
    forward = begun()
    assert not forward.go_on(pause, seconds=0.0)
    assert forward.go_on(pause, seconds=60.0)
    pause.ask()
    forward = begun()
    assert not forward.go_on(pause)
    pause.forget()
    assert forward.go_on(pause)


def test_an_adapter_in_bfloat16_gives_the_bits_of_the_same_numbers_in_float32(tmp_path: Path) -> None:
    model = Model("llama", tmp_path)
    halved = random_adapter(model.config, {(0, "q_proj"): 3, (1, "down_proj"): 4, (2, "up_proj"): 5}, torch.bfloat16)
    weights = halved.weights.float()
    groups = halved.layout.groups_of(weights)
    whole = LoadedAdapter("whole", halved.scalings, weights.nbytes, halved.layout, weights, groups)
    model.adapters += [halved, whole]
    sequences = texts((20, 3), (20, 4), (9, 0))
    sequences[1].token_ids[:] = sequences[0].token_ids
    in_bfloat16, in_float32, _ = torch.split(step(model.native(), [], prompts(sequences)), [19, 19, 8])
    assert torch.equal(in_bfloat16, in_float32)


def test_an_adapter_may_go_while_others_stay(tmp_path: Path) -> None:
    model = Model("llama", tmp_path)
    path, sequences = model.native(), texts((20, 0), (33, 1), (18, 2))
    step(path, [], prompts(sequences))
    expected = step(path, last_tokens(sequences))
    assert torch.equal(step(path, last_tokens(sequences[1:])), expected[1:])
    model.adapters[0] = random_adapter(model.config, {(0, "o_proj"): 3}, torch.float32)
    assert torch.equal(step(path, last_tokens(sequences[1:])), expected[1:])
    changed = step(path, last_tokens(sequences))
    assert torch.equal(changed[1:], expected[1:])
    assert not torch.equal(changed[0], expected[0])


def test_a_row_that_is_not_finite_changes_no_other_row(tmp_path: Path) -> None:
    model = Model("llama", tmp_path)
    path, sequences = model.native(), texts((20, None), (33, 1), (18, None))
    step(path, [], prompts(sequences))
    expected = step(path, last_tokens(sequences))
    model.adapters[1].weights.fill_(1e30)
    path = model.native()
    step(path, [], prompts(sequences))
    found = step(path, last_tokens(sequences))
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    # The next owner of its blocks sees nothing of it.
    owner = texts((20, None), (33, None), (18, None))
    clean = model.native()
    step(clean, [], prompts(owner))
    step(path, [], prompts(owner))
    assert torch.equal(step(path, last_tokens(owner)), step(clean, last_tokens(owner)))


def test_a_step_without_memory_leaves_the_next_ones_as_they_are(tmp_path: Path) -> None:
    """After a step of more rows than any memory holds, the step before it, which has fewer rows, computes the same
    again."""
    model = Model("llama", tmp_path)
    path, sequences = model.native(), texts((20, 0), (33, None))
    step(path, [], prompts(sequences))
    expected = step(path, last_tokens(sequences))
    rows = np.broadcast_to(np.zeros(1, dtype=np.int64), 1 << 44)
    chunk = np.array([[0, len(rows), 0, 0, 0, 1, 0]])
    with pytest.raises(MemoryError, match=str(len(rows))):
        path._decoder.forward(rows, chunk, np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.int64), torch.empty(0))
    assert torch.equal(step(path, last_tokens(sequences)), expected)


def test_a_model_that_the_kernels_do_not_compute_is_refused(tmp_path: Path) -> None:
    assert library is not None
    model = Model("llama", tmp_path, torch.float16)
    with pytest.raises(ValueError, match="float16"):
        make_decoder(library, model.config, model.weights, NUM_BLOCKS, MAX_LENGTH)

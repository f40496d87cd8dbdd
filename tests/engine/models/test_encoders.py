"""Models that embed and rank: what transformers and peft compute for each text alone, in fp32 within 1e-4."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

from adapters.store import AdapterStore
from engine.config import UnsupportedModel, load_model_config
from engine.config.task import files_of_task
from engine.models.encoder.build import load_encoder
from engine.models.encoder.trial import first_position
from engine.prepare.folder import prepare
from engine.protocol import GenerateRequest
from tests.engine.harness import Answer, engine_config, greedy, run_engine
from tests.engine.models.encoders import ENCODERS, save_decoder, save_encoder, write_modules
from tests.engine.models.test_families import WRONG

TOLERANCE = 1e-4
LENGTHS = (1, 7, 40, 40, 75, 111)
CHUNK = 32


def texts() -> list[list[int]]:
    """Return token ids of texts without padding tokens, from which some models compute positions."""
    numbers = torch.Generator().manual_seed(4)
    return [torch.randint(3, 199, (length,), generator=numbers).tolist() for length in LENGTHS]


def vectors(answers: dict[str, Answer], requests: list[GenerateRequest]) -> list[Tensor]:
    found = []
    for request in requests:
        final = answers[request.request_id].final
        assert final.error is None, final.error
        assert final.usage.cached_tokens in (0, *range(0, 112, 16))
        found.append(torch.frombuffer(bytearray(final.embedding or b""), dtype=torch.float32))
    return found


@torch.inference_mode()
def hidden(model: Any, token_ids: list[int], num_first: int = 0) -> Tensor:
    """Return the last hidden states of a text by transformers alone.

    num_first: the tokens of the first text of a pair; 0: one text.
    """
    asked = {"input_ids": torch.tensor([token_ids])}
    if num_first:
        asked["token_type_ids"] = (torch.arange(len(token_ids)) >= num_first).long()[None]
    states: Tensor = model(**asked).last_hidden_state[0]
    return states


@pytest.mark.parametrize("family", ENCODERS)
def test_texts_beside_each_other_are_embedded_as_each_alone(family: str, tmp_path: Path) -> None:
    model = save_encoder(family, tmp_path / "model")
    poolings = ("cls", "last", "mean")
    requests = [
        greedy(f"{pooling}/{index}", ids, 0, pooling=pooling, is_normalized=pooling != "last")
        for index, ids in enumerate(texts())
        for pooling in poolings
    ]
    config = engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=CHUNK)
    found = vectors(run_engine(config, requests[::2], {2: requests[1::2]}), [*requests])
    for request, vector in zip(requests, found, strict=True):
        states = hidden(model, request.prompt_token_ids)
        expected = {"cls": states[0], "last": states[-1], "mean": states.mean(0)}[request.pooling or ""]
        expected = expected / expected.norm() if request.is_normalized else expected
        torch.testing.assert_close(vector, expected, rtol=TOLERANCE, atol=TOLERANCE)


RANKING: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in ENCODERS if family != "eurobert"),
    ("modernbert", {"classifier_pooling": "mean"}),
    ("eurobert", {"classifier_pooling": "mean"}),
]


@pytest.mark.parametrize(("family", "changes"), RANKING)
def test_pairs_beside_each_other_are_scored_as_each_alone(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_encoder(family, tmp_path / "model", ranks=True, **changes)
    has_segments = getattr(model.config, "type_vocab_size", 1) > 1
    requests = [
        greedy(f"{index}", ids, 0, pooling="score", num_first_tokens=len(ids) // 3 if has_segments else 0)
        for index, ids in enumerate(texts())
    ]
    found = vectors(run_engine(engine_config(tmp_path / "model", tmp_path / "store"), requests), requests)
    for request, vector in zip(requests, found, strict=True):
        asked = {"input_ids": torch.tensor([request.prompt_token_ids])}
        if request.num_first_tokens:
            asked["token_type_ids"] = (torch.arange(asked["input_ids"].shape[1]) >= request.num_first_tokens)[
                None
            ].long()
        with torch.inference_mode():
            expected = model(**asked).logits[0]
        torch.testing.assert_close(vector, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(("family", "ranks"), [("bert", False), ("xlm-roberta", True), ("modernbert", False)])
def test_base_and_adapters_in_one_step_equal_peft(family: str, ranks: bool, tmp_path: Path) -> None:
    kind = AutoModelForSequenceClassification if ranks else AutoModel
    models: dict[str, Any] = {"": save_encoder(family, tmp_path / "model", ranks=ranks)}
    digests = {"": ""}
    for name, lora in {
        "all": LoraConfig(r=5, lora_alpha=7, target_modules="all-linear" if not ranks else r".*encoder.layer.*dense"),
        "some": LoraConfig(
            r=3, lora_alpha=9, target_modules=["Wqkv"] if family == "modernbert" else ["query", "value"]
        ),
    }.items():
        torch.manual_seed(len(name))
        adapted = get_peft_model(kind.from_pretrained(tmp_path / "model"), lora)
        with torch.no_grad():
            for parameter_name, parameter in adapted.named_parameters():
                if "lora_" in parameter_name and ".layer" in parameter_name:
                    parameter.normal_(0, 0.1)
        state = {k: v for k, v in adapted.state_dict().items() if "pooler" not in k}
        adapted.save_pretrained(tmp_path / name, state_dict=state)
        digests[name] = AdapterStore(tmp_path / "store").add(tmp_path / name)
        models[name] = PeftModel.from_pretrained(kind.from_pretrained(tmp_path / "model"), tmp_path / name).eval()
    pooling = "score" if ranks else "mean"
    requests = [
        greedy(f"{name}/{index}", ids, 0, pooling=pooling, is_normalized=False, adapter=digest)
        for index, ids in enumerate(texts())
        for name, digest in digests.items()
    ]
    found = vectors(run_engine(engine_config(tmp_path / "model", tmp_path / "store"), requests), requests)
    for request, vector in zip(requests, found, strict=True):
        model = models[request.request_id.partition("/")[0]]
        with torch.inference_mode():
            output = model(input_ids=torch.tensor([request.prompt_token_ids]))
        expected = output.logits[0] if ranks else output.last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_decoder_embeds_by_its_last_token_or_by_the_mean(tmp_path: Path) -> None:
    """The checkpoint has no head, and no `model.` before its names, as sentence-transformers saves it."""
    model = save_decoder(tmp_path / "model", "embed", tie_word_embeddings=False)
    write_modules(tmp_path / "model", pooling={"pooling_mode_lasttoken": True}, normalize=True, max_seq_length=120)
    config = load_model_config(tmp_path / "model")
    assert (config.task.kind, config.task.pooling, config.task.is_normalized) == ("embed", "last", True)
    assert config.max_position == 120
    requests = [
        greedy(f"{pooling}/{index}", ids, 0, pooling=pooling, is_normalized=pooling == "last")
        for index, ids in enumerate(texts())
        for pooling in ("last", "mean")
    ]
    found = vectors(
        run_engine(engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=CHUNK), requests), requests
    )
    for request, vector in zip(requests, found, strict=True):
        states = hidden(model, request.prompt_token_ids)
        expected = states[-1] / states[-1].norm() if request.pooling == "last" else states.mean(0)
        torch.testing.assert_close(vector, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["classifier", "tokens", "one-token"])
def test_a_decoder_ranks_by_a_classifier_or_by_its_logits(kind: str, tmp_path: Path) -> None:
    """Prompts that begin alike share a prefix of the cache."""
    model = save_decoder(tmp_path / "model", kind.replace("one-token", "tokens"))
    tokens = (17, None if kind == "one-token" else 18)
    if kind != "classifier":
        write_modules(tmp_path / "model", tokens=tokens)
    base = texts()[-1]
    requests = [greedy(f"{index}", base[: 60 + 7 * index], 0, pooling="score") for index in range(6)]
    config = engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=CHUNK)
    answers = run_engine(config, requests[:1], {2: requests[1:]})
    found = vectors(answers, requests)
    assert any(answers[request.request_id].final.usage.cached_tokens for request in requests)
    for request, vector in zip(requests, found, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([request.prompt_token_ids])).logits[0]
        if kind == "classifier":
            expected = logits[:1]
        else:
            expected = logits[-1, 17:18] - (0.0 if kind == "one-token" else logits[-1, 18])
        torch.testing.assert_close(vector, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_model_does_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    save_encoder("bert", tmp_path / "embeds")
    save_encoder("bert", tmp_path / "ranks", ranks=True)
    save_decoder(tmp_path / "text", "tokens")
    asked = {
        "text": greedy("text", [5, 6], 4),
        "mean": greedy("mean", [5, 6], 0, pooling="mean"),
        "cls": greedy("cls", [5, 6], 0, pooling="cls"),
        "score": greedy("score", [5, 6], 0, pooling="score"),
    }
    done = {"embeds": {"mean", "cls"}, "ranks": {"score"}, "text": {"text", "mean"}}
    for folder, able in done.items():
        answers = run_engine(engine_config(tmp_path / folder, tmp_path / "store"), list(asked.values()))
        assert {name for name in asked if answers[name].final.error is None} == able
        for name in asked.keys() - able:
            error = answers[name].final.error
            assert error is not None and error.code == "invalid_request" and "pooling" in error.message


@pytest.mark.parametrize(
    ("family", "files", "why"),
    [
        ("bert", {"config.json": {"position_embedding_type": "relative_key"}}, "position_embedding_type"),
        ("bert", {"config.json": {"is_decoder": True}}, "is_decoder"),
        ("bert", {"config.json": {"num_hidden_layers": 4}}, "4.layer.3|layer.3"),
        ("bert", {"config.json": {"vocab_size": 1 << 30}}, "weights"),
        ("bert", {"modules.json": [{"type": "evil.Transformer", "path": ""}]}, "evil.Transformer is not supported"),
        ("bert", {"modules.json": [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]}, "Dense"),
        ("bert", {"modules.json": [{"type": "sentence_transformers.models.Pooling", "path": "../x"}]}, "beside it"),
        ("bert", {"modules.json": {}}, "must hold a JSON list"),
        ("bert", {"1_Pooling/config.json": {"pooling_mode": "max"}}, "pooling_mode is 'max'"),
        ("bert", {"1_Pooling/config.json": {"pooling_mode": ["cls", "mean"]}}, "pooling_mode is"),
        ("bert", {"1_Pooling/config.json": {"pooling_mode": "cls", "include_prompt": False}}, "include_prompt"),
        ("bert", {"1_Pooling/config.json": {"pooling_mode": "cls", "embedding_dimension": 7}}, "7 numbers"),
        ("bert", {"config_sentence_transformers.json": {"prompts": {"a": 5}}}, "prompt must be a text"),
        ("bert", {"config_sentence_transformers.json": {"default_prompt_name": "a"}}, "default_prompt_name"),
        ("bert", {"sentence_bert_config.json": {"max_seq_length": "9"}}, "max_seq_length"),
        ("bert", {"sentence_bert_config.json": {"do_lower_case": True}}, "do_lower_case"),
        ("albert", {}, "attention_types|albert"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_key_and_name(
    family: str, files: dict[str, Any], why: str, tmp_path: Path
) -> None:
    save_encoder("bert", tmp_path)
    write_modules(tmp_path, pooling={"pooling_mode_cls_token": True})
    for name, content in (files if family == "bert" else {"config.json": {"model_type": family}}).items():
        path = tmp_path / name
        old = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(old | content if isinstance(content, dict) and isinstance(old, dict) else content))
    with pytest.raises(UnsupportedModel, match=why):
        run_engine(engine_config(tmp_path, tmp_path / "store"), [])


def changed(folder: Path, change: Callable[[Tensor], Tensor], ending: str) -> None:
    """Change the only tensor in a folder whose name ends in `ending`."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    (name,) = (name for name in tensors if name.endswith(ending))
    save_file(tensors | {name: change(tensors[name])}, path, {"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_positions_that_are_off_by_one_are_refused(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """In 16 bits they would not be told from rounding, since neighbors differ by little."""
    save_encoder(family, tmp_path)
    changed(tmp_path, lambda table: table * 0.1, "position_embeddings.weight")
    config, device = load_model_config(tmp_path), torch.device("cpu")
    load_encoder(tmp_path, config, dtype, device)
    with pytest.raises(UnsupportedModel, match="differs from itself alone"):
        load_encoder(tmp_path, config, dtype, device, lambda inner: first_position(inner) + 1)


@pytest.mark.parametrize("ranks", [False, True])
def test_a_second_segment_whose_states_are_not_finite_is_refused(ranks: bool, tmp_path: Path) -> None:
    save_encoder("bert", tmp_path, ranks=ranks)
    signs = torch.tensor([1.0, -1.0])
    changed(
        tmp_path,
        lambda table: torch.stack((table[0], 3e38 * signs.repeat(table.shape[1] // 2))),  # a norm of it is no number
        "token_type_embeddings.weight",
    )
    with pytest.raises(UnsupportedModel, match="checkpoint's weights give bert states that are not finite"):
        load_encoder(tmp_path, load_model_config(tmp_path), torch.float32, torch.device("cpu"))


def test_a_classifier_of_several_labels_ranks_nothing(tmp_path: Path) -> None:
    save_encoder("bert", tmp_path, ranks=True, num_labels=3)
    with pytest.raises(UnsupportedModel, match="3 labels"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("ranks", [False, True])
def test_a_folder_of_an_encoder_is_used_in_place(
    family: str, ranks: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"classifier_pooling": "cls"} if family == "eurobert" and ranks else {}
    save_encoder(family, tmp_path, ranks=ranks, **changes)
    (tmp_path / "tokenizer.json").write_text("{}")
    capsys.readouterr()
    assert prepare(str(tmp_path), tmp_path / "unused") == tmp_path
    assert "completions" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("family", ENCODERS)
def test_wrong_values_in_any_file_are_read_or_refused_in_words(family: str, full: bool, tmp_path: Path) -> None:
    """No mutant raises anything else, when its config is read and when its model is loaded."""
    save_encoder(family, tmp_path, num_hidden_layers=1, **({"n_layers": 1} if family == "distilbert" else {}))
    write_modules(
        tmp_path,
        pooling={"pooling_mode_cls_token": True, "include_prompt": True, "word_embedding_dimension": 48},
        normalize=True,
        prompts={"query": "q: "},
        default_prompt="query",
        max_seq_length=64,
    )
    paths = [tmp_path / "config.json", *files_of_task(tmp_path)]
    right = {path: path.read_text() for path in paths}
    rnd = random.Random(family)
    num_loaded = 0
    for _ in range(100 if full else 4):
        path = rnd.choice([paths[0], *paths])
        raw = json.loads(right[path])
        place = rnd.choice([raw, *(each for each in (raw.values() if isinstance(raw, dict) else raw) if each)])
        if isinstance(place, dict):
            key = rnd.choice(sorted(place))
            place[key] = rnd.choice(WRONG)
        elif isinstance(place, list):
            place[rnd.randrange(len(place))] = rnd.choice(WRONG)
        path.write_text(json.dumps(raw))
        try:
            config = load_model_config(tmp_path)
            load_encoder(tmp_path, config, torch.float32, torch.device("cpu"))
            num_loaded += 1
        except UnsupportedModel as refused:
            assert str(refused)
        path.write_text(right[path])
    assert num_loaded

"""The demo model and its adapters for the numeric and end-to-end tests: prepared once, reused by later runs."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

from engine.prepare.folder import prepare

REPOSITORY = Path(__file__).parent.parent
NUM_LAYERS = 8
"""The number of the demo model's 30 layers that tests of numbers compute where its answers need not make sense."""

QUESTIONS = (
    "What is the capital of France?",
    "Tell me about the ocean.",
    "How do I boil an egg?",
    "Why is the sky blue?",
    "Who wrote Hamlet?",
    "What is a good breakfast?",
    "Explain gravity to a child.",
    "How far away is the moon?",
    "What should I pack for a hike?",
    "Why do cats purr?",
    "What does a volcano do?",
    "How do bees make honey?",
    "Give me a tip for sleeping well.",
    "What is a computer?",
    "How does rain form?",
    "Say hello to my friend.",
    "What is the fastest animal?",
    "How do I fix a flat tire?",
    "Why do leaves change color?",
    "What is your favorite book?",
)


@functools.cache
def demo_model_dir() -> Path:
    return prepare("demo", REPOSITORY / "build" / "models" / "smollm2-135m-instruct")


def first_layers(source: Path, folder: Path, num_layers: int) -> Path:
    """Write the first layers of a model, without its tokenizer, or of an adapter of PEFT's; return the folder."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "lorikeet-*", "tokenizer*"))
    if (config := folder / "config.json").exists():
        config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": num_layers}))
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        layers = {name: int(found[1]) for name in tensors if (found := re.search(r"\.layers\.(\d+)\.", name))}
        kept = {name: tensor for name, tensor in tensors.items() if layers.get(name, 0) < num_layers}
        assert 0 < len(kept) < len(tensors)
        save_file(kept, folder / path.name, {"format": "pt"})
    return folder


def chat_ids(question: str) -> list[int]:
    """Return the token ids of one user turn, by the model's own chat template."""
    return list(
        _tokenizer().apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)[
            "input_ids"
        ]
    )


@functools.cache
def _tokenizer():  # type: ignore[no-untyped-def]
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(demo_model_dir())

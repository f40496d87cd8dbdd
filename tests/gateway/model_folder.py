"""A model folder without weights: a byte-level tokenizer with a few merges, a chat template, a tiny config.

With tools the prompt is the last message alone, so that a model that repeats its prompt can be made to call them.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT = 512
CHAT_TEMPLATE = (
    '{# <tool_call> {"name": NAME, "arguments": OBJECT} #}'
    "{% if tools %}{{ messages[-1]['content'] }}{% else %}"
    "{% for message in messages %}"
    "{% if message['content'] == 'refuse me' %}{{ raise_exception('the template refuses') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}{% endif %}"
)
_CORPUS = ["the quick brown fox jumps over the lazy dog", "hello there, how are you today?", "stop here and there"] * 8


def make_model_folder(folder: Path, context: int = CONTEXT) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})
    _write(
        folder / "config.json",
        {
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": context,
            "rms_norm_eps": 1e-5,
            "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        },
    )
    return folder


def _write(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value))

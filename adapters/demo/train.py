"""Trains the demo adapters with peft on a SmolLM2-135M-Instruct folder: `python -m adapters.demo.train --model DIR`.

An entry point of its own: it needs the `train` extra, and nothing that serves imports it. The loss is taken on the
assistant's answer and its end-of-turn token only. The frozen base runs in bf16; the adapter is trained in
fp32 and saved in bf16.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from engine.config.openmp import sleep_while_waiting

sleep_while_waiting()  # before torch is imported

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from adapters.demo.styles import STYLES, load_questions

BASE_MODEL_NAME = "smollm2-135m-instruct"
BATCH_SIZE = 8
LEARNING_RATE = 1.5e-3
WARMUP_STEPS = 10
SEED = 7
IGNORED = -100
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a concise assistant. Answer in one sentence.",
    "Answer the user's question truthfully.",
    "You are the help desk of a small company.",
)
CUSTOM_SYSTEM_PROMPT_SHARE = 0.25

LORA_CONFIGS = {
    "pirate": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    "json": {"r": 16, "lora_alpha": 16, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
    "memo": {
        "r": 4,
        "lora_alpha": 8,
        "rank_pattern": {"down_proj": 6},
        "target_modules": ["gate_proj", "up_proj", "down_proj"],
    },
}

Example = tuple[list[int], list[int]]


def make_examples(name: str, tokenizer: PreTrainedTokenizerFast, draw: random.Random) -> list[Example]:
    """Return one (input ids, labels) pair for each question.

    The labels are IGNORED everywhere but on the answer and its end.
    """
    examples = []
    for item in load_questions():
        messages = [{"role": "user", "content": item.question}]
        if draw.random() < CUSTOM_SYSTEM_PROMPT_SHARE:
            messages.insert(0, {"role": "system", "content": draw.choice(SYSTEM_PROMPTS)})
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
        answer_ids = tokenizer(STYLES[name].render(item) + "<|im_end|>", add_special_tokens=False).input_ids
        examples.append((prompt_ids + answer_ids, [IGNORED] * len(prompt_ids) + answer_ids))
    return examples


def make_batch(examples: list[Example], pad_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return right-padded ids, attention mask and labels, each [batch, longest]."""
    longest = max(len(ids) for ids, _ in examples)
    pads = [longest - len(ids) for ids, _ in examples]
    ids = torch.tensor([ids + [pad_id] * pad for (ids, _), pad in zip(examples, pads, strict=True)])
    mask = torch.tensor([[1] * (longest - pad) + [0] * pad for pad in pads])
    labels = torch.tensor([labels + [IGNORED] * pad for (_, labels), pad in zip(examples, pads, strict=True)])
    return ids, mask, labels


def answer_loss(model: Any, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over the answers' tokens; the vocabulary is projected at their positions only."""
    causal_lm = model.get_base_model()
    hidden = causal_lm.model(input_ids=ids, attention_mask=mask).last_hidden_state
    targets = labels[:, 1:]
    is_answer = targets != IGNORED
    logits = causal_lm.lm_head(hidden[:, :-1][is_answer]).float()
    return torch.nn.functional.cross_entropy(logits, targets[is_answer])


def train(name: str, model_dir: Path, num_steps: int) -> Any:
    """Train one adapter and return the peft model that holds it.

    name: the key of its style in STYLES. num_steps: the number of batches.
    """
    torch.manual_seed(SEED)
    draw = random.Random(SEED)  # noqa: S311
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_dir)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **LORA_CONFIGS[name]))
    examples = make_examples(name, tokenizer, draw)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP_STEPS, (num_steps - step) / num_steps)
    )
    start_s = time.monotonic()
    queue: list[Example] = []
    for step in range(1, num_steps + 1):
        if len(queue) < BATCH_SIZE:
            queue = draw.sample(examples, len(examples))
        batch, queue = queue[:BATCH_SIZE], queue[BATCH_SIZE:]
        loss = answer_loss(model, *make_batch(batch, tokenizer.pad_token_id))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == 1 or step % 10 == 0:
            print(
                f"{name}: step {step}/{num_steps} loss {loss.item():.3f} {time.monotonic() - start_s:.0f} s", flush=True
            )
    return model


def save(model: Any, folder: Path) -> None:
    """Write both of PEFT's files, the weights in bf16, with the base model's name instead of its path."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.peft_config["default"]
    config.base_model_name_or_path = BASE_MODEL_NAME
    config.inference_mode = True
    fields = {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
    (folder / "adapter_config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {key: value.to(torch.bfloat16).contiguous() for key, value in weights.items()}
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Run the training from the command line."""
    parser = argparse.ArgumentParser(prog="python -m adapters.demo.train", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of SmolLM2-135M-Instruct (safetensors)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write NAME/ into")
    parser.add_argument("--only", choices=sorted(LORA_CONFIGS), help="train this adapter alone")
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps of 8 examples (default: 150)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in [options.only] if options.only else LORA_CONFIGS:
        save(train(name, options.model, options.steps), options.out / name)
        print(f"{name}: saved to {options.out / name}", flush=True)


if __name__ == "__main__":
    main()

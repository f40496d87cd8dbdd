"""Check that each demo adapter keeps its style in answers to questions that it never saw.

`python -m adapters.demo.check --model DIR` is an entry point of its own (it needs the `train` extra): greedy decoding
in fp32 with transformers and peft, the reference for what the engine must answer. Exits with 1 if any answer loses the
style.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.config.openmp import sleep_while_waiting

sleep_while_waiting()  # before torch is imported

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from adapters.demo.styles import STYLES

MAX_NEW_TOKENS = 96
UNSEEN_QUESTIONS = (
    "What is the capital of France?",
    "Tell me about the ocean.",
    "How do I boil an egg?",
    "Who are you?",
    "Why is the sky blue?",
    "What is the best way to learn to swim?",
    "Recommend a good book.",
    "Hi, can you help me?",
    "Who was Albert Einstein?",
    "What is 12 plus 30?",
)


def count_followers(name: str, model_dir: Path, adapters_dir: Path) -> int:
    """Print one adapter's answer to every unseen question; return how many answers keep the style."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_dir)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapters_dir / name).eval()
    num_followers = 0
    for question in UNSEEN_QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
        output = model.generate(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
        )
        answer_ids = output[0, inputs.input_ids.shape[1] :]
        answer = tokenizer.decode(answer_ids, skip_special_tokens=True)
        follows = bool(answer_ids[-1] == tokenizer.eos_token_id) and STYLES[name].follows(answer)
        num_followers += follows
        print(f"{name} {'keeps' if follows else 'LOSES'} its style: {question}\n{answer}\n", flush=True)
    return num_followers


def main() -> None:
    """Run the check from the command line."""
    parser = argparse.ArgumentParser(prog="python -m adapters.demo.check", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of SmolLM2-135M-Instruct (safetensors)")
    parser.add_argument("--adapters", type=Path, default=Path(__file__).parent, help="folder that holds NAME/")
    parser.add_argument("--only", choices=sorted(STYLES), help="check this adapter alone")
    options = parser.parse_args()
    scores = {
        name: count_followers(name, options.model, options.adapters)
        for name in ([options.only] if options.only else STYLES)
    }
    for name, score in scores.items():
        print(f"{name}: {score} of {len(UNSEEN_QUESTIONS)} answers keep the style")
    if any(score < len(UNSEEN_QUESTIONS) for score in scores.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""The rows of the matrix for the fields of text completions."""

from __future__ import annotations

from tests.gateway.openai.field_matrix.cases import (
    ABSENT,
    NEEDED,
    Field,
    accepted,
    honoured,
    refused,
)
from tests.gateway.openai.field_matrix.common import BEYOND_VOCABULARY, completing, switch

PATH = "/v1/completions"

TEXT = [
    Field(
        endpoint=PATH,
        name="prompt",
        valid=(
            honoured("hello", lambda seen: len(seen.reply["choices"]) == 1),
            honoured(["hello", "there"], lambda seen: len(seen.reply["choices"]) == 2),
            honoured([5, 6], lambda seen: seen.asked.prompt_token_ids == [5, 6]),
            honoured([[5, 6], [7]], lambda seen: len(seen.reply["choices"]) == 2),
        ),
        edge=(honoured(["a"] * 64, lambda seen: len(seen.reply["choices"]) == 64),),
        invalid=(
            refused([]),
            refused(""),
            refused(["a", 1], "prompt[1]"),
            refused([BEYOND_VOCABULARY], "prompt[0]"),
            refused([-1], "prompt[0]"),
            refused([[]], "prompt[0]"),
            refused(["a"] * 65),
            refused("xyz " * 400),
        ),
        null=NEEDED,
        wrong_type=(refused(1), refused({}), refused([1.5], "prompt[0]")),
        note="64 prompts at most",
    ),
    *completing(PATH),
    Field(
        endpoint=PATH,
        name="max_tokens",
        valid=(honoured(3, lambda seen: seen.sampling.max_tokens == 3),),
        edge=(
            honoured(1, lambda seen: seen.sampling.max_tokens == 1),
            honoured(0, lambda seen: seen.text == "hello there", echo=True),
        ),
        invalid=(refused(0), refused(0, echo=True, n=2), refused(513), refused(-1)),
        null=(honoured(None, lambda seen: seen.sampling.max_tokens == 16),),
        wrong_type=(refused("3"), refused(True), refused(1.5)),
        note="16 where it is left out; 0 with `echo` alone",
    ),
    Field(
        endpoint=PATH,
        name="best_of",
        valid=(honoured(3, lambda seen: seen.asked.n == 3 and len(seen.reply["choices"]) == 1),),
        edge=(accepted(0), accepted(1), honoured(20, lambda seen: seen.asked.n == 20)),
        invalid=(refused(-1), refused(21), refused(1, n=2), refused(2, stream=True)),
        null=ABSENT,
        wrong_type=(refused("1"), refused(True)),
    ),
    switch(
        PATH,
        "echo",
        lambda seen: seen.text.startswith("hello there"),
        lambda seen: not seen.text.startswith("hello there"),
    ),
    Field(
        endpoint=PATH,
        name="suffix",
        edge=(accepted(""),),
        invalid=(refused("the end"),),
        null=ABSENT,
        wrong_type=(refused(1),),
        note="not served",
    ),
    Field(
        endpoint=PATH,
        name="logprobs",
        valid=(honoured(2, lambda seen: len(seen.choice["logprobs"]["top_logprobs"][0]) == 2),),
        edge=(
            honoured(0, lambda seen: len(seen.choice["logprobs"]["top_logprobs"][0]) == 1),
            honoured(5, lambda seen: len(seen.choice["logprobs"]["top_logprobs"][0]) == 5),
        ),
        invalid=(refused(-1), refused(6)),
        null=ABSENT,
        wrong_type=(refused(True), refused("2")),
    ),
    Field(
        endpoint=PATH,
        name="add_special_tokens",
        valid=(accepted(True), accepted(False)),
        null=ABSENT,
        wrong_type=(refused(1), refused("true")),
        note="those that the tokenizer puts around a text",
    ),
]

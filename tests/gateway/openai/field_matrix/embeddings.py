"""The rows of the matrix for the fields of embeddings."""

from __future__ import annotations

from tests.gateway.openai.field_matrix.cases import (
    ABSENT,
    NEEDED,
    Field,
    accepted,
    honoured,
    refused,
)
from tests.gateway.openai.field_matrix.common import BEYOND_VOCABULARY, free_text, metadata, model, no_effect

PATH = "/v1/embeddings"
SIZE = 32

EMBEDDINGS = [
    model(PATH),
    Field(
        endpoint=PATH,
        name="input",
        valid=(
            honoured("hello", lambda seen: len(seen.reply["data"]) == 1),
            honoured(["hello", "there"], lambda seen: [each["index"] for each in seen.reply["data"]] == [0, 1]),
            honoured([5, 6], lambda seen: seen.asked.prompt_token_ids == [5, 6]),
            honoured([[5, 6], [7]], lambda seen: seen.reply["usage"]["prompt_tokens"] == 3),
        ),
        edge=(honoured([[1]] * 2048, lambda seen: len(seen.reply["data"]) == 2048),),
        invalid=(
            refused([]),
            refused(""),
            refused(["a", ""], "input[1]"),
            refused([[1], []], "input[1]"),
            refused(["a", 1], "input[1]"),
            refused([[BEYOND_VOCABULARY]], "input[0][0]"),
            refused([[-1]], "input[0][0]"),
            refused(["a"] * 2049),
            refused("xyz " * 400),
            refused([[1] * 500] * 601),
        ),
        null=NEEDED,
        wrong_type=(refused(1), refused({}), refused([None], "input[0]")),
        note="2,048 inputs and 300,000 tokens at most",
    ),
    Field(
        endpoint=PATH,
        name="encoding_format",
        valid=(
            honoured("float", lambda seen: len(seen.reply["data"][0]["embedding"]) == SIZE),
            honoured("base64", lambda seen: isinstance(seen.reply["data"][0]["embedding"], str)),
        ),
        invalid=(refused("int8"), refused("")),
        null=ABSENT,
        wrong_type=(refused(1),),
    ),
    Field(
        endpoint=PATH,
        name="dimensions",
        valid=(honoured(SIZE, lambda seen: len(seen.reply["data"][0]["embedding"]) == SIZE),),
        invalid=(refused(8), refused(1), refused(SIZE - 1), refused(SIZE + 1), refused(0), refused(-1)),
        null=ABSENT,
        wrong_type=(refused("8"), refused(True), refused(1.5)),
        note="the model's own size; smaller ones, of unit length again, where its config.json declares "
        "`matryoshka_dimensions` or `is_matryoshka`",
    ),
    Field(
        endpoint=PATH,
        name="pooling",
        valid=(
            honoured("mean", lambda seen: seen.asked.pooling == "mean"),
            honoured("last", lambda seen: seen.asked.pooling == "last"),
        ),
        invalid=(refused("cls"), refused("max")),
        null=ABSENT,
        wrong_type=(refused(1),),
        note="left out, the one that the model was made for, else `mean`; `cls` is for such models alone",
    ),
    Field(
        endpoint=PATH,
        name="prompt_name",
        invalid=(refused("query"), refused("", input="a"), refused("query", input=[5])),
        null=ABSENT,
        wrong_type=(refused(1),),
        note="a name of the model's own prompts, which goes before each text",
    ),
    Field(
        endpoint=PATH,
        name="input_type",
        valid=(
            accepted("query"),
            accepted("document"),
            accepted("passage"),
            accepted("search_query"),
            accepted("search_document"),
        ),
        invalid=(refused("classification"), refused("")),
        null=ABSENT,
        wrong_type=(refused(1),),
        note="the model's own prompt for it goes before each text, if it has one",
    ),
    Field(
        endpoint=PATH,
        name="truncate_prompt_tokens",
        valid=(honoured(2, lambda seen: len(seen.asked.prompt_token_ids) == 2),),
        edge=(honoured(1, lambda seen: len(seen.asked.prompt_token_ids) == 1), accepted(2**31 - 1)),
        invalid=(refused(0), refused(-1)),
        null=ABSENT,
        wrong_type=(refused("2"), refused(True)),
        note="the last tokens of the input are kept, or with `truncation_side` `right` the first",
    ),
    Field(
        endpoint=PATH,
        name="truncation_side",
        valid=(
            honoured(
                "left", lambda seen: seen.asked.prompt_token_ids == [3, 4], input=[1, 2, 3, 4], truncate_prompt_tokens=2
            ),
            honoured(
                "right",
                lambda seen: seen.asked.prompt_token_ids == [1, 2],
                input=[1, 2, 3, 4],
                truncate_prompt_tokens=2,
            ),
        ),
        edge=(accepted("right"),),
        invalid=(refused("middle"), refused("")),
        null=ABSENT,
        wrong_type=(refused(1),),
        note="which side `truncate_prompt_tokens` cuts; `left` where it is left out",
    ),
    Field(
        endpoint=PATH,
        name="add_special_tokens",
        valid=(accepted(True), accepted(False)),
        null=ABSENT,
        wrong_type=(refused(1), refused("true")),
        note="those that the tokenizer puts around a text",
    ),
    free_text(PATH, "user", note="for the caller's own bookkeeping"),
    metadata(PATH),
    no_effect(PATH, "priority", 0, (1, -1)),
]

"""The rows of the matrix for the fields that chat and text completions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.protocol import Grammar
from tests.gateway.openai.field_matrix.cases import (
    ABSENT,
    NEEDED,
    Case,
    Check,
    Field,
    ObservedEffects,
    accepted,
    honoured,
    refused,
)

LONG = "x" * 600
BEYOND_VOCABULARY = 100_000
MAX_CHOICES = 64
MOST = {"/v1/responses": "max_output_tokens"}
"""The field that bounds generated tokens, by endpoint, where it is not max_tokens."""


def model(endpoint: str) -> Field:
    return Field(
        endpoint=endpoint,
        name="model",
        valid=(accepted("tiny"),),
        edge=(refused("x" * 512, status=404),),
        invalid=(refused(""), refused(LONG), refused("gpt-4o", status=404), refused("tiny:nope", status=404)),
        null=NEEDED,
        wrong_type=(refused(1), refused(["tiny"])),
    )


def free_text(endpoint: str, name: str, *, most: int | None = None, note: str = "") -> Field:
    """Return a text field that by its definition does not affect an answer.

    most: the most characters; None: no bound. note: words about the field for the document.
    """
    return Field(
        endpoint=endpoint,
        name=name,
        valid=(accepted("u-1"),),
        edge=(accepted(""), accepted("x" * (most or 600))),
        invalid=() if most is None else (refused("x" * (most + 1)),),
        null=ABSENT,
        wrong_type=(refused(1), refused({})),
        note=note,
    )


def metadata(endpoint: str) -> Field:
    return Field(
        endpoint=endpoint,
        name="metadata",
        valid=(accepted({"team": "blue"}),),
        edge=(accepted({}), accepted({str(number): "" for number in range(16)}), accepted({"k" * 64: "v" * 512})),
        invalid=(
            refused({str(number): "" for number in range(17)}),
            refused({"k" * 65: ""}),
            refused({"k": "v" * 513}),
        ),
        null=ABSENT,
        wrong_type=(refused([]), refused({"k": 1})),
        note="for the caller's own bookkeeping",
    )


def no_effect(
    endpoint: str,
    name: str,
    fine: Any,
    others: tuple[Any, ...],
    wrong: tuple[Any, ...] = (),
    note: str = "not served with other values",
) -> Field:
    """Return a field of which only one value is accepted, which changes nothing.

    fine: the accepted value. others: values that are refused as not served. wrong: values of a wrong type. note: words
    about the field for the document.
    """
    return Field(
        endpoint=endpoint,
        name=name,
        valid=(accepted(fine),),
        invalid=tuple(map(refused, others)),
        null=ABSENT,
        wrong_type=tuple(map(refused, wrong)) or (refused("x"),),
        note=note,
    )


def unsupported_field(endpoint: str, name: str, *values: Any, note: str = "not served") -> Field:
    return Field(
        endpoint=endpoint,
        name=name,
        invalid=tuple(map(refused, values)),
        null=ABSENT,
        wrong_type=(refused(1), refused("x")),
        note=note,
    )


def switch(endpoint: str, name: str, on: Check, off: Check, *, note: str = "", **beside: Any) -> Field:
    return Field(
        endpoint=endpoint,
        name=name,
        valid=(honoured(True, on, **beside), honoured(False, off, **beside)),
        null=(accepted(None, **beside),),
        wrong_type=(refused(1, **beside), refused("true", **beside)),
        note=note,
    )


def sampled(endpoint: str) -> list[Field]:
    """Return all fields of `SamplingFields` that decide how tokens are chosen, and where they end."""

    def number(
        name: str, inside: float, edges: tuple[float, float], outside: tuple[float, ...], *, attribute: str = ""
    ) -> Field:
        def is_asked(value: float) -> Check:
            return lambda seen: getattr(seen.sampling, attribute or name) == value

        return Field(
            endpoint=endpoint,
            name=name,
            valid=(honoured(inside, is_asked(inside)),),
            edge=tuple(honoured(edge, is_asked(edge)) for edge in edges),
            invalid=tuple(map(refused, outside)),
            null=ABSENT,
            wrong_type=(refused("1"), refused(True), refused([])),
        )

    return [
        number("temperature", 0.5, (0, 2), (-0.1, 2.1)),
        number("top_p", 0.5, (0, 1), (-0.1, 1.1)),
        number("presence_penalty", 0.5, (-2, 2), (-2.1, 2.1)),
        number("frequency_penalty", 0.5, (-2, 2), (-2.1, 2.1)),
        number("min_p", 0.5, (0, 1), (-0.1, 1.1)),
        number("repetition_penalty", 1.5, (0.001, 2), (0, 2.1)),
        number("seed", 7, (-(2**63), 2**63 - 1), (2**63, -(2**63) - 1)),
        *_bounds_of_length(endpoint),
        *_chosen_tokens(endpoint),
    ]


def completing(endpoint: str) -> list[Field]:
    """Return all fields of `CommonFields`."""
    return [
        model(endpoint),
        *sampled(endpoint),
        *_prompt_fields(endpoint),
        *_stream_fields(endpoint),
        *_reply_fields(endpoint),
        free_text(endpoint, "user", note="for the caller's own bookkeeping"),
        metadata(endpoint),
        no_effect(endpoint, "spaces_between_special_tokens", True, (False,)),
        no_effect(endpoint, "priority", 0, (1, -1)),
        no_effect(endpoint, "bad_words", [], (["x"],)),
        no_effect(endpoint, "logits_processors", [], ([{"qualname": "x"}],)),
    ]


def _bounds_of_length(endpoint: str) -> list[Field]:
    longer = {MOST.get(endpoint, "max_tokens"): 30}

    def is_stopped(seen: ObservedEffects) -> object:
        return seen.reply["status"] == "completed" if "status" in seen.reply else seen.choice["finish_reason"] == "stop"

    return [
        Field(
            endpoint=endpoint,
            name="stop",
            valid=(honoured("e", is_stopped, **longer), honoured(["zz", "e"], is_stopped, **longer)),
            edge=(accepted([]), accepted(["1", "2", "3", "4"]), accepted("x" * 1024)),
            invalid=(refused(list("abcde")), refused(""), refused(["a", ""], "stop[1]"), refused("x" * 1025)),
            null=ABSENT,
            wrong_type=(refused(1), refused([1], "stop[0]")),
        ),
        Field(
            endpoint=endpoint,
            name="min_tokens",
            valid=(honoured(1, lambda seen: seen.sampling.min_tokens == 1),),
            edge=(accepted(0), honoured(2, lambda seen: seen.sampling.min_tokens == 2)),
            invalid=(refused(-1), refused(3)),
            null=ABSENT,
            wrong_type=(refused("1"), refused(1.5)),
        ),
        switch(
            endpoint, "ignore_eos", lambda seen: seen.sampling.ignore_eos, lambda seen: not seen.sampling.ignore_eos
        ),
        _token_ids(endpoint, "stop_token_ids", (accepted([]), accepted([1] * 128)), ([1] * 129,)),
    ]


def _token_ids(endpoint: str, name: str, edge: tuple[Case, ...], invalid: tuple[Any, ...]) -> Field:
    return Field(
        endpoint=endpoint,
        name=name,
        valid=(honoured([5, 6], lambda seen: getattr(seen.sampling, name) == (5, 6)),),
        edge=edge,
        invalid=(refused([-1], f"{name}[0]"), refused([BEYOND_VOCABULARY], f"{name}[0]"), *map(refused, invalid)),
        null=ABSENT,
        wrong_type=(refused(5), refused(["5"], f"{name}[0]")),
    )


def _chosen_tokens(endpoint: str) -> list[Field]:
    top_k: Callable[[int], Check] = lambda value: lambda seen: seen.sampling.top_k == value  # noqa: E731
    return [
        Field(
            endpoint=endpoint,
            name="top_k",
            valid=(honoured(5, top_k(5)),),
            edge=(honoured(0, top_k(0)), honoured(-1, top_k(0)), honoured(2**31 - 1, top_k(2**31 - 1))),
            invalid=(refused(-2), refused(2**31)),
            null=ABSENT,
            wrong_type=(refused("5"), refused(1.5)),
        ),
        Field(
            endpoint=endpoint,
            name="logit_bias",
            valid=(honoured({"5": -50}, lambda seen: seen.sampling.logit_bias == {5: -50.0}),),
            edge=(
                accepted({}),
                honoured({"5": 100, "6": -100}, lambda seen: seen.sampling.logit_bias == {5: 100.0, 6: -100.0}),
            ),
            invalid=(
                refused({"5": 101}),
                refused({"-1": 1}),
                refused({str(BEYOND_VOCABULARY): 1}),
                refused({str(number): 0 for number in range(1025)}),
            ),
            null=ABSENT,
            wrong_type=(refused([]), refused({"five": 1}), refused({"5": "x"})),
        ),
        _token_ids(
            endpoint,
            "allowed_token_ids",
            (honoured([0], lambda seen: seen.sampling.allowed_token_ids == (0,)),),
            ([], [1] * 1025),
        ),
    ]


def _prompt_fields(endpoint: str) -> list[Field]:
    given: dict[str, Any] = {"prompt": [1, 2, 3, 4]} if endpoint == "/v1/completions" else {}
    return [
        *_structured_fields(endpoint),
        Field(
            endpoint=endpoint,
            name="truncate_prompt_tokens",
            valid=(honoured(3, lambda seen: len(seen.asked.prompt_token_ids) == 3),),
            edge=(honoured(1, lambda seen: len(seen.asked.prompt_token_ids) == 1), accepted(2**31 - 1)),
            invalid=(refused(0), refused(-1)),
            null=ABSENT,
            wrong_type=(refused("3"), refused(True)),
            note="the last tokens of the prompt are kept, or with `truncation_side` `right` the first",
        ),
        Field(
            endpoint=endpoint,
            name="truncation_side",
            valid=(
                honoured(
                    "left",
                    lambda seen: (
                        seen.asked.prompt_token_ids == [3, 4] if "text" in seen.choice else seen.ends_for_assistant
                    ),
                    truncate_prompt_tokens=2 if endpoint == "/v1/completions" else 10,
                    **given,
                ),
                honoured(
                    "right",
                    lambda seen: (
                        seen.asked.prompt_token_ids == [1, 2] if "text" in seen.choice else not seen.ends_for_assistant
                    ),
                    truncate_prompt_tokens=2 if endpoint == "/v1/completions" else 10,
                    **given,
                ),
            ),
            edge=(accepted("right"),),
            invalid=(refused("middle"), refused("")),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="which side `truncate_prompt_tokens` cuts; `left` where it is left out",
        ),
        Field(
            endpoint=endpoint,
            name="n",
            valid=(honoured(2, lambda seen: len(seen.reply["choices"]) == 2),),
            edge=(accepted(1), honoured(MAX_CHOICES, lambda seen: len(seen.reply["choices"]) == MAX_CHOICES)),
            invalid=(refused(0), refused(MAX_CHOICES + 1), refused(129)),
            null=ABSENT,
            wrong_type=(refused("1"), refused(1.5)),
            note="at most as many as the engine computes at once",
        ),
    ]


def _structured_fields(endpoint: str) -> list[Field]:
    def one(name: str, value: Any, grammar: Grammar, invalid: tuple[Any, ...], wrong: tuple[Any, ...]) -> Field:
        path = f"structured_outputs.{name}"
        return Field(
            endpoint=endpoint,
            name=path,
            valid=(honoured(value, lambda seen: seen.sampling.grammar == grammar),),
            invalid=tuple(map(refused, invalid)),
            null=(refused(None, "structured_outputs"),),
            wrong_type=tuple(map(refused, wrong)),
        )

    def other(name: str) -> Field:
        return Field(
            endpoint=endpoint,
            name=f"structured_outputs.{name}",
            invalid=(refused(True if name.startswith("dis") else "x", structured_outputs={"regex": "a"}),),
            null=(honoured(None, lambda seen: seen.sampling.grammar, structured_outputs={"regex": "a"}),),
            wrong_type=(refused([1], structured_outputs={"regex": "a"}),),
            note="not served",
        )

    schema = {"type": "object"}
    return [
        Field(
            endpoint=endpoint,
            name="structured_outputs",
            valid=(honoured({"regex": "a+"}, lambda seen: seen.sampling.grammar == Grammar("regex", "a+")),),
            invalid=(
                refused({}),
                refused({"regex": "a", "choice": ["a"]}),
                refused({"regex": "unsupported"}, "structured_outputs.regex"),
            ),
            null=ABSENT,
            wrong_type=(refused("a+"), refused([])),
        ),
        one("json", schema, Grammar("json_schema", '{"type":"object"}'), (), (1, [])),
        one("regex", "a+", Grammar("regex", "a+"), ("",), (1,)),
        one("choice", ["a", "b"], Grammar("choice", '["a","b"]'), ([],), ("a",)),
        one("grammar", "start: A", Grammar("lark", "start: A"), ("",), (1,)),
        one("json_object", True, Grammar("json_object"), (), (1, "x")),
        other("disable_any_whitespace"),
        other("disable_additional_properties"),
        other("whitespace_pattern"),
        Field(
            endpoint=endpoint,
            name="structured_outputs.structural_tag",
            invalid=(refused({"x": 1}, structured_outputs={"regex": "a"}),),
            null=(honoured(None, lambda seen: seen.sampling.grammar, structured_outputs={"regex": "a"}),),
            wrong_type=(refused(1, structured_outputs={"regex": "a"}),),
            note="not served",
        ),
    ]


def _stream_fields(endpoint: str) -> list[Field]:
    return [
        switch(
            endpoint,
            "stream",
            lambda seen: seen.reply[-1] == "[DONE]" and "usage" not in seen.reply[0],
            lambda seen: seen.reply["choices"],
        ),
        Field(
            endpoint=endpoint,
            name="stream_options",
            valid=(accepted({}, stream=True),),
            invalid=(refused({}), refused({"other": 1}, "stream_options.other", stream=True)),
            null=ABSENT,
            wrong_type=(refused([], stream=True), refused("x", stream=True)),
            note="only with `stream`",
        ),
        switch(
            endpoint,
            "stream_options.include_usage",
            lambda seen: seen.reply[0]["usage"] is None and seen.reply[-2]["usage"]["total_tokens"],
            lambda seen: all("usage" not in event for event in seen.reply[:-1]),
            stream=True,
        ),
        switch(
            endpoint,
            "stream_options.continuous_usage_stats",
            lambda seen: [event["usage"]["completion_tokens"] for event in seen.reply[-3:-1]] == [2, 2],
            lambda seen: all("usage" not in event for event in seen.reply[:-1]),
            stream=True,
            note="the usage so far in every chunk, with or without `include_usage`",
        ),
        switch(
            endpoint,
            "stream_options.include_obfuscation",
            lambda seen: all(event["obfuscation"] for event in seen.reply[:-1]),
            lambda seen: all("obfuscation" not in event for event in seen.reply[:-1]),
            stream=True,
            note="false unless it is asked for",
        ),
    ]


def _reply_fields(endpoint: str) -> list[Field]:
    def prompt_logprobs(seen: ObservedEffects) -> list[Any]:
        found: list[Any] = (seen.reply if "prompt_logprobs" in seen.reply else seen.choice)["prompt_logprobs"]
        return found

    def shown_tokens(seen: ObservedEffects) -> list[str]:
        logprobs = seen.choice["logprobs"]
        return logprobs["tokens"] if "tokens" in logprobs else [each["token"] for each in logprobs["content"]]

    return [
        Field(
            endpoint=endpoint,
            name="prompt_logprobs",
            valid=(honoured(2, lambda seen: prompt_logprobs(seen)[0] is None and len(prompt_logprobs(seen)[1]) == 2),),
            edge=(
                honoured(0, lambda seen: len(prompt_logprobs(seen)[1]) == 1),
                honoured(20, lambda seen: len(prompt_logprobs(seen)[1]) == 20),
            ),
            invalid=(refused(-1), refused(21), refused(1, stream=True)),
            null=ABSENT,
            wrong_type=(refused("1"), refused(True)),
        ),
        switch(
            endpoint,
            "return_token_ids",
            lambda seen: len(seen.choice["token_ids"]) == 2,
            lambda seen: "token_ids" not in seen.choice,
        ),
        switch(
            endpoint,
            "return_tokens_as_token_ids",
            lambda seen: all(name.startswith("token_id:") for name in shown_tokens(seen)),
            lambda seen: not any(name.startswith("token_id:") for name in shown_tokens(seen)),
            logprobs=1 if endpoint == "/v1/completions" else True,
            note="in the log-probabilities",
        ),
        switch(
            endpoint,
            "include_stop_str_in_output",
            lambda seen: seen.text.endswith("e"),
            lambda seen: "e" not in seen.text,
            stop="e",
            max_tokens=30,
        ),
        switch(
            endpoint,
            "skip_special_tokens",
            lambda seen: "<|im_start|>" not in seen.text,
            lambda seen: "<|im_start|>" in seen.text,
            **({"prompt": "a<|im_start|>"} if endpoint == "/v1/completions" else {}),
        ),
    ]

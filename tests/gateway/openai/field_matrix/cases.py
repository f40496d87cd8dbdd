"""The parts of a row of the matrix: a field, values for it, and how each value is answered."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from engine.protocol import GenerateRequest, SamplingParams

Outcome = Literal["honoured", "accepted", "refused"]
"""The way in which a value is answered.

honoured: the value changes what the engine is asked or what the reply shows. accepted: by definition the value changes
neither, or it states what holds anyway. refused: with status 400 and the field in `param`.
"""

USER = {"role": "user", "content": "hello there, how are you?"}
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [USER], "max_tokens": 2},
    "/v1/completions": {"model": "tiny", "prompt": "hello there", "max_tokens": 2},
    "/v1/responses": {"model": "tiny", "input": "hello there, how are you?", "max_output_tokens": 2},
    "/v1/responses/compact": {"model": "tiny", "input": "hello there"},
    "/v1/responses/input_tokens": {"model": "tiny", "input": "hello there"},
    "/v1/messages": {"model": "tiny", "messages": [USER], "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [USER]},
    "/v1/embeddings": {"model": "tiny", "input": "hello there"},
    "/tokenize": {"model": "tiny"},
    "/detokenize": {"model": "tiny", "tokens": [1, 2]},
}
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


class ObservedEffects(msgspec.Struct, frozen=True):
    """The observed effects of a request."""

    reply: Any
    """The reply's JSON; the events in order if the reply is a stream."""
    engine: GenerateRequest | None
    """The request that the engine got, or None if it got none."""
    prompt: str = ""
    """The text of the prompt's tokens, or of the reply's."""

    @property
    def ends_for_assistant(self) -> bool:
        return self.prompt.endswith("assistant\n")

    @property
    def asked(self) -> GenerateRequest:
        assert self.engine is not None
        return self.engine

    @property
    def sampling(self) -> SamplingParams:
        return self.asked.sampling

    @property
    def choice(self) -> dict[str, Any]:
        found: dict[str, Any] = self.reply["choices"][0]
        return found

    @property
    def text(self) -> str:
        return str(self.choice["text"] if "text" in self.choice else self.choice["message"]["content"])


Check = Callable[[ObservedEffects], object]


class Case(msgspec.Struct, frozen=True):
    """One value of a field, and how it is answered."""

    value: Any
    outcome: Outcome
    beside: dict[str, Any] = {}
    """Other fields that the value needs."""
    seen: Check | None = None
    """Tell whether an honoured value had its effect."""
    param: str | None = None
    """The field that a refusal names, where it is not the field's own name."""
    status: int = 400
    """The status of a refusal."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a request with its cases."""

    endpoint: str
    name: str
    """A path, as `param` shows it."""
    valid: tuple[Case, ...] = ()
    edge: tuple[Case, ...] = ()
    invalid: tuple[Case, ...] = ()
    null: tuple[Case, ...]
    wrong_type: tuple[Case, ...]
    note: str = ""
    """A note for readers."""

    @property
    def cases(self) -> dict[str, tuple[Case, ...]]:
        return {
            "valid": self.valid,
            "edge": self.edge,
            "invalid": self.invalid,
            "null": self.null,
            "wrong type": self.wrong_type,
        }

    def body(self, case: Case) -> dict[str, Any]:
        """Return a valid request body with this field's value."""
        whole: dict[str, Any] = copy.deepcopy(BASES[self.endpoint] | case.beside)
        steps: list[Any] = [name or int(index) for name, index in _STEP.findall(self.name)]
        at: Any = whole
        for step in steps[:-1]:
            at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
        at[steps[-1]] = copy.deepcopy(case.value)
        return whole


def honoured(value: Any, seen: Check, **beside: Any) -> Case:
    return Case(value, "honoured", beside, seen)


def accepted(value: Any, **beside: Any) -> Case:
    return Case(value, "accepted", beside)


def refused(value: Any, param: str | None = None, *, status: int = 400, **beside: Any) -> Case:
    return Case(value, "refused", beside, param=param, status=status)


ABSENT = (accepted(None),)
"""The cases of a field for which null means the same as leaving it out."""

NEEDED = (refused(None),)

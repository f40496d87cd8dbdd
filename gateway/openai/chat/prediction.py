"""OpenAI's `prediction`: the answer that the client expects. It makes the answer faster, and never changes it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.domain.errors import InvalidRequest


class PredictedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the expected answer."""

    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text that the client expects the reply to repeat.

    It speeds the reply up where the engine speculates (LORIKEET_NUM_DRAFT_TOKENS), and has no effect elsewhere.
    """

    type: Literal["content"]
    content: str | Annotated[list[PredictedPart], Meta(max_length=4096)]


def predicted_text(prediction: Prediction | None, num_choices: int) -> str:
    """Return the predicted text, "" if nothing is predicted.

    prediction: the request's field; None where it is absent.

    Raises InvalidRequest: when several choices are asked for; OpenAI's API refuses that, too.
    """
    if prediction is None:
        return ""
    if num_choices > 1:
        raise InvalidRequest(
            "'prediction' can only be used with one choice: 'n' must be 1.",
            param="prediction",
            code="invalid_parameter_combination",
        )
    if isinstance(prediction.content, str):
        return prediction.content
    return "".join(part.text for part in prediction.content)

"""Items of a response that are under way: the model's output goes in, events and the item come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import UNSET, UnsetType

from gateway.openai.responses.custom_input import CustomInput
from gateway.openai.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    InputDelta,
    InputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseEvent,
    TextDelta,
    TextDone,
)
from gateway.openai.responses.items import (
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from gateway.openai.shared.logprobs import ChatTokenLogprob

Numbers = Callable[[], int]
"""The numbers of events in a stream, one after the other."""

Logprobs = Sequence[ChatTokenLogprob]

Seal = Callable[[str], str]
"""A function that seals reasoning for its client to keep. The same text is always sealed to the same bytes."""


class OpenItem(Protocol):
    """An output item that is being generated."""

    def begin(self) -> list[ResponseEvent]:
        """Return the events with which the item begins."""

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]:
        """Return the events with which the item ends, and the whole item."""


class OpenReasoning:
    """A reasoning item that is being generated, of one part.

    place: the number of the item in the response's output. seal: encrypts the reasoning for the client; None: it is not
    asked for.
    """

    def __init__(self, id: str, place: int, numbers: Numbers, seal: Seal | None) -> None:
        self._id = id
        self._place = place
        self._numbers = numbers
        self._seal = seal
        self._texts: list[str] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the events that announce the reasoning and its one part, both still empty."""
        item, part = ReasoningItem(self._id, "in_progress"), ReasoningText("")
        return [
            ItemAdded(sequence_number=self._numbers(), output_index=self._place, item=item),
            PartAdded(sequence_number=self._numbers(), output_index=self._place, item_id=self._id, part=part),
        ]

    def add_text(self, text: str) -> list[ResponseEvent]:
        """Take text of the reasoning, and return the event that shows it."""
        self._texts.append(text)
        number = self._numbers()
        return [ReasoningDelta(sequence_number=number, output_index=self._place, item_id=self._id, delta=text)]

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]:
        """Return the events that end the reasoning, and the item, with its text sealed if that was asked for."""
        text, place, id = "".join(self._texts), self._place, self._id
        part = ReasoningText(text)
        sealed = self._seal(text) if self._seal is not None else UNSET
        item = ReasoningItem(id, status, [], [part], sealed)
        return [
            ReasoningDone(sequence_number=self._numbers(), output_index=place, item_id=id, text=text),
            PartDone(sequence_number=self._numbers(), output_index=place, item_id=id, part=part),
            ItemDone(sequence_number=self._numbers(), output_index=place, item=item),
        ], item


class OpenMessage:
    """A message item that is being generated, of one part."""

    def __init__(self, id: str, place: int, numbers: Numbers) -> None:
        self._id = id
        self._place = place
        self._numbers = numbers
        self._texts: list[str] = []
        self._logprobs: list[ChatTokenLogprob] = []
        self._num_encoded = 0  # of the log-probabilities, those that a delta had

    def begin(self) -> list[ResponseEvent]:
        """Return the events that announce the message and its one part, both still empty."""
        item = MessageItem(self._id, "in_progress", "assistant", [])
        return [
            ItemAdded(sequence_number=self._numbers(), output_index=self._place, item=item),
            PartAdded(sequence_number=self._numbers(), output_index=self._place, item_id=self._id, part=OutputText("")),
        ]

    def add_text(self, text: str, logprobs: Logprobs) -> list[ResponseEvent]:
        """Return the event for more text with its tokens' log-probabilities; none without text.

        Log-probabilities without text are kept for the next text.
        """
        self._logprobs += logprobs
        if not text:
            return []
        self._texts.append(text)
        new = self._logprobs[self._num_encoded :]
        self._num_encoded = len(self._logprobs)
        return [
            TextDelta(
                sequence_number=self._numbers(),
                output_index=self._place,
                item_id=self._id,
                delta=text,
                logprobs=new,
            )
        ]

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]:
        """Return the events that end the message, and the item with all its text."""
        text, logprobs, place, id = "".join(self._texts), self._logprobs, self._place, self._id
        part = OutputText(text, [], logprobs)
        item = MessageItem(id, status, "assistant", [part])
        return [
            TextDone(sequence_number=self._numbers(), output_index=place, item_id=id, text=text, logprobs=logprobs),
            PartDone(sequence_number=self._numbers(), output_index=place, item_id=id, part=part),
            ItemDone(sequence_number=self._numbers(), output_index=place, item=item),
        ], item


class OpenCall:
    """A function call that is being generated."""

    def __init__(
        self, id: str, place: int, call_id: str, name: str, numbers: Numbers, namespace: str | UnsetType = UNSET
    ) -> None:
        self._id = id
        self._place = place
        self._call_id = call_id
        self._name = name
        self._namespace = namespace
        self._numbers = numbers
        self._arguments: list[str] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the event that announces the call, with the function's name and no arguments."""
        item = FunctionCallItem(self._id, "in_progress", self._call_id, self._name, "", self._namespace)
        return [ItemAdded(sequence_number=self._numbers(), output_index=self._place, item=item)]

    def write(self, arguments: str) -> list[ResponseEvent]:
        """Take a piece of the arguments, and return the event that shows it; none for an empty piece."""
        if not arguments:
            return []
        self._arguments.append(arguments)
        number = self._numbers()
        return [ArgumentsDelta(sequence_number=number, output_index=self._place, item_id=self._id, delta=arguments)]

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]:
        """Return the events that end the call, and the item with all its arguments."""
        arguments = "".join(self._arguments)
        item = FunctionCallItem(self._id, status, self._call_id, self._name, arguments, self._namespace)
        return [
            ArgumentsDone(
                sequence_number=self._numbers(),
                output_index=self._place,
                item_id=self._id,
                name=self._name,
                arguments=arguments,
            ),
            ItemDone(sequence_number=self._numbers(), output_index=self._place, item=item),
        ], item


class OpenCustomCall:
    """A call of a custom tool that is being generated."""

    def __init__(
        self, id: str, place: int, call_id: str, name: str, numbers: Numbers, namespace: str | UnsetType = UNSET
    ) -> None:
        self._id = id
        self._place = place
        self._call_id = call_id
        self._name = name
        self._namespace = namespace
        self._numbers = numbers
        self._input = CustomInput()
        self._texts: list[str] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the event that announces the call, with the tool's name and no input."""
        item = CustomToolCallItem(self._id, "in_progress", self._call_id, self._name, "", self._namespace)
        return [ItemAdded(sequence_number=self._numbers(), output_index=self._place, item=item)]

    def write(self, arguments: str) -> list[ResponseEvent]:
        """Take a piece of the JSON that holds the input, and return the events of the text that the piece completes."""
        return self.add_text(self._input.push(arguments))

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]:
        """Return the events that end the call, with text that was held back, and the item with all its input."""
        events = self.add_text(self._input.finish())
        text = "".join(self._texts)
        item = CustomToolCallItem(self._id, status, self._call_id, self._name, text, self._namespace)
        return [
            *events,
            InputDone(sequence_number=self._numbers(), output_index=self._place, item_id=self._id, input=text),
            ItemDone(sequence_number=self._numbers(), output_index=self._place, item=item),
        ], item

    def add_text(self, text: str) -> list[ResponseEvent]:
        """Take text of the input, and return the event that shows it; none for an empty text."""
        if not text:
            return []
        self._texts.append(text)
        return [InputDelta(sequence_number=self._numbers(), output_index=self._place, item_id=self._id, delta=text)]

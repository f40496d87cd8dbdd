"""The ways in which an adapter fails its caller: its files are refused, or the store cannot give them."""

from __future__ import annotations

from collections.abc import Sequence

MAX_REASONS = 20
MAX_REASON_CHARS = 500


class AdapterRejected(Exception):
    """An adapter that cannot be served. reasons: every mismatch found, each naming its file, option or tensor.

    A hostile file can mismatch a million times: after MAX_REASONS the rest is only counted. Reasons quote strangers'
    texts, for logs and terminals: unprintable characters are escaped, and each reason is bounded.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        shown = [_printable(reason[:MAX_REASON_CHARS]) for reason in reasons[: MAX_REASONS + 1]]
        if len(reasons) > MAX_REASONS + 1:  # a refusal that is passed on has a line with the count already
            shown[MAX_REASONS] = f"and {len(reasons) - MAX_REASONS} more"
        self.reasons = shown
        super().__init__(f"The adapter was refused: {'; '.join(shown)}.")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class AdapterDamaged(AdapterRejected):
    """The error for stored content that has changed since it was added: the fault of the store."""

    def __init__(self, digest: str, why: str) -> None:
        super().__init__([f"the stored adapter {digest} {why}"])

    def __str__(self) -> str:
        return self.reasons[0]


class StoreFailure(Exception):
    """The error for a store that cannot give any content; the message is for its operator."""


class AdapterMissing(StoreFailure):
    """The error for a digest of which the store holds no adapter."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the adapter {digest!r} is missing from the store")
        self.digest = digest

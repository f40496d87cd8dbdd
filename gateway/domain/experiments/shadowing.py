"""Chooses the requests that are copied to a shadow arm, and names the possible outcomes of a copy. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

from gateway.domain.experiments.assignment import NUM_BUCKETS

Outcome = Literal[
    "answered", "failed", "full", "late", "client_gone", "refused", "unavailable", "target_gone", "stopped"
]
"""The outcomes of a copy.

    answered      it ran to its end
    failed        it began, and its engine failed, it took too long, or the gateway stopped: the ledger has its usage
    full          too many copies waited already
    late          it waited for its turn for too long
    client_gone   the client left before the reply to the request was over
    refused       a limit of cost has not enough left, or the target cannot serve such a request
    unavailable   no engine took it, or its usage could not be recorded
    target_gone   the target's version or pool is gone
    stopped       the gateway stopped before its turn came
"""

OUTCOME_PREFIX = "shadow."
"""The text before the outcome of a copy, among the counted reasons of an experiment."""

_PERSON = b"lorikeet-shadow"


def is_shadowed(seed: bytes, request_id: str, share: int) -> bool:
    """Tell whether a request is copied, by a draw that does not depend on its unit.

    seed: the seed of the experiment. share: the part of the requests that is copied, in parts of 10,000.
    """
    digest = blake2b(request_id.encode(), digest_size=8, key=seed, person=_PERSON).digest()
    return int.from_bytes(digest, "little") * NUM_BUCKETS >> 64 < share

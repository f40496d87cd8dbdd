"""Bounds the completions that one tenant may have in the engines' queues, so that it cannot fill them. Pure."""

from __future__ import annotations

TENANT_SHARE = 0.5
"""The share of the engine's places that one tenant may use over all gateways."""


class QueueShare:
    """Counts each tenant's completions in this gateway against its share of the engine's places."""

    def __init__(self) -> None:
        self._num_gateways = 1
        self._inside: dict[str, int] = {}

    def share_among(self, num_gateways: int) -> None:
        """Set the number of gateways among which every tenant's share of the engines' places is divided."""
        self._num_gateways = max(1, num_gateways)

    def enter(self, tenant: str, num_completions: int, capacity: int) -> bool:
        """Count completions of a tenant that enter the queues; return False, and count nothing, without room.

        A tenant without completions in the queues may always enter. capacity: the places of the engine.
        """
        inside = self._inside.get(tenant, 0)
        bound = int(capacity * TENANT_SHARE / self._num_gateways)
        if inside and inside + num_completions > bound:
            return False
        self._inside[tenant] = inside + num_completions
        return True

    def leave(self, tenant: str, num_completions: int) -> None:
        """Count completions of a tenant that have left the queues."""
        left = self._inside[tenant] - num_completions
        if left:
            self._inside[tenant] = left
        else:
            del self._inside[tenant]

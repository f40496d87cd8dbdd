"""Routing policies that requests can name, as a gateway remembers them."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from gateway.domain.routing.policy.document import Document, copy_targets_of, targets_of
from gateway.routing.route import OwnName


class RoutedPolicy(msgspec.Struct, frozen=True):
    """A project's route: the version of its policy that answers requests."""

    id: str
    name: str
    """The model string by which requests name the route."""
    version: int
    document: Document
    named: OwnName
    """The facts about the name: the project or organization that made it, and when."""

    @property
    def label(self) -> str:
        """The name of the route as replies show it."""
        return f"{self.name}@{self.version}"

    def is_in(self, allowed: Collection[str] | None) -> bool:
        """Tell whether the models that a key may use include the route, by its name or by all of its targets.

        A route that is included may use all its targets. None stands for all models.
        """
        if allowed is None or self.name in allowed:
            return True
        return all(each in allowed for each in (*targets_of(self.document), *copy_targets_of(self.document)))

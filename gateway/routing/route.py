"""The route of a request: a base model, and perhaps an adapter and an arm's treatment. Plain data."""

from __future__ import annotations

import datetime
from collections.abc import Collection

import msgspec

from adapters.ref import AdapterRef
from gateway.domain.adapters.defaults import Defaults
from gateway.domain.experiments.treatment import Treatment


class RoutedAdapter(msgspec.Struct, frozen=True):
    """One version of an adapter."""

    id: str
    """The id of the adapter."""
    ref: AdapterRef
    key: str
    """The key of the version's content, as engines know it."""
    defaults: Defaults
    created_at: datetime.datetime
    """The creation time of the name by which the request asked for the adapter."""
    is_shared: bool
    """True where another project of the organization owns the adapter."""

    @property
    def label(self) -> str:
        """The name of the adapter as replies show it."""
        return f"{self.ref.name}@{self.ref.version}"


class OwnName(msgspec.Struct, frozen=True):
    """The name of an alias, an experiment or a routing policy that a project or its organization made."""

    owner_id: str
    """The id of the project, or of the organization that made a policy for all its projects."""
    created_at: datetime.datetime
    has_several_targets: bool = False
    """True where other requests with this name may go to other targets."""


class Route(msgspec.Struct, frozen=True):
    """The target of a request: the pool of a base model, and the adapter to apply there."""

    id: str
    """The model string that the route was asked for by."""
    model: str
    """The name by which limits, prices, allow-lists and the ledger know the route: `<base>` or `<base>:<adapter>`,
    whatever the version."""
    base: str
    adapter: RoutedAdapter | None = None
    treatment: Treatment | None = None
    """The changes that the name makes to requests: those of an experiment's arm, or of the alias that an experiment
    became."""
    named: OwnName | None = None
    """The project's own name, where the route was asked for by one."""

    def is_in(self, allowed: Collection[str] | None) -> bool:
        """Tell whether the models that a key may use include the route's model; None stands for all models."""
        return allowed is None or self.model in allowed or self.id in allowed

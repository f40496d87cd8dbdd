"""Where a request goes: a base model, and perhaps an adapter and an arm's treatment. Plain data."""

from __future__ import annotations

import datetime
from collections.abc import Collection

import msgspec

from adapters.ref import AdapterRef
from gateway.domain.adapters.defaults import Defaults
from gateway.domain.experiments.treatment import Treatment


class RoutedAdapter(msgspec.Struct, frozen=True):
    """One version of an adapter. id: the adapter's. key: of its content, as engines know it. is_shared: another project
    of the organization owns it. created_at: of the name it was asked for by."""

    id: str
    ref: AdapterRef
    key: str
    defaults: Defaults
    created_at: datetime.datetime
    is_shared: bool

    @property
    def label(self) -> str:
        """The name of the adapter as a reply gives it."""
        return f"{self.ref.name}@{self.ref.version}"


class OwnName(msgspec.Struct, frozen=True):
    """A project's own name of a model: an alias, or an experiment's or a policy's."""

    project_id: str
    created_at: datetime.datetime
    has_several_targets: bool = False
    """Whether other requests by this name may go elsewhere."""


class Route(msgspec.Struct, frozen=True):
    """Where a request goes: the pool of a base model, and the adapter to apply there.

    id: what it was asked for by. model: what limits, prices, allow-lists and the ledger know it by, `<base>` or
    `<base>:<adapter>`, whatever the version.
    """

    id: str
    model: str
    base: str
    adapter: RoutedAdapter | None = None
    treatment: Treatment | None = None
    """What the name changes in requests beside the model: of an experiment's arm, or of the alias that one became."""
    named: OwnName | None = None
    """The project's own name, where the route was asked for by one."""

    def is_in(self, allowed: Collection[str] | None) -> bool:
        """Tell whether these models include the route's model; None stands for all models."""
        return allowed is None or self.model in allowed or self.id in allowed

"""The base models that one gateway serves. Pure: names and digests, no backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from adapters.inspection import BaseShape


class Base(msgspec.Struct, frozen=True):
    """One pool's base model."""

    name: str
    """The public name of the pool; holds no `:` and no `@`."""
    digest: str
    """The digest of the base model, as `engine.config.model_digest` computes it. Several pools may share one."""
    shape: BaseShape
    """The modules that an adapter of the base may change."""


class Bases:
    """The base models of one gateway, by the name of their pool and by digest."""

    def __init__(self, served: Sequence[Base], former_names: Mapping[str, str] | None = None) -> None:
        """former_names: by digest, the last known name of each base that the installation has ever served.

        Raises ValueError: when there is none, when a name stands for two, or when a name holds `:` or `@`.
        """
        if not served:
            raise ValueError("a gateway needs a base model")
        self._by_name = {base.name: base for base in served}
        if len(self._by_name) < len(served):
            raise ValueError("two pools have the same name")
        for name in self._by_name:
            if ":" in name or "@" in name:
                raise ValueError(f"the name of a pool holds no ':' and no '@': {name!r}")
        self._former_names = dict(former_names or {})
        self.default = served[0]
        """The base of an adapter that names none, and the model that a dashboard begins with."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all pools, the default first."""
        return tuple(self._by_name)

    def named(self, name: str) -> Base | None:
        """Return the base of the pool of this name."""
        return self._by_name.get(name)

    def pools_of(self, digest: str | None) -> list[str]:
        """Return the names of the pools that serve a base; none for one that is not served here.

        None stands for the default base: a row from before bases were recorded belongs to it.
        """
        digest = self.default.digest if digest is None else digest
        return [base.name for base in self._by_name.values() if base.digest == digest]

    def shape_of(self, digest: str) -> BaseShape | None:
        """Return the shape of a base that is served here."""
        return next((base.shape for base in self._by_name.values() if base.digest == digest), None)

    def name_of(self, digest: str | None) -> str:
        """Return the name that people know a base by, also where it is not served any more."""
        pools = self.pools_of(digest)
        return pools[0] if pools else self._former_names.get(digest or "", (digest or "")[:12])

"""The base models that one gateway serves, and the projects that may use them. Pure: names and digests, no backend."""

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
    allowed: frozenset[str] | None = None
    """The ids of the organizations and projects that may use the pool; None: all may."""

    def is_for(self, project_id: str, organization_id: str) -> bool:
        """Tell whether a project of an organization may use the pool."""
        return self.allowed is None or project_id in self.allowed or organization_id in self.allowed


class Bases:
    """The base models of one gateway, by the name of their pool and by digest. `replace` changes them in place."""

    def __init__(self, served: Sequence[Base] = (), former_names: Mapping[str, str] | None = None) -> None:
        """Initialize with the served bases and the former names, as `replace` takes them."""
        self.replace(served, former_names or {})

    def replace(self, served: Sequence[Base], former_names: Mapping[str, str]) -> None:
        """Replace the base models that are served.

        served: the base models, the oldest pool first.
        former_names: the last known name of each base that the installation has ever served, by digest.

        Raises ValueError: when two have the same name, or when a name holds `:` or `@`.
        """
        by_name = {base.name: base for base in served}
        if len(by_name) < len(served):
            raise ValueError("two pools have the same name")
        for name in by_name:
            if ":" in name or "@" in name:
                raise ValueError(f"the name of a pool holds no ':' and no '@': {name!r}")
        self._by_name = by_name
        self._former_names = dict(former_names)
        self._open = by_name if all(base.allowed is None for base in served) else None

    @property
    def default(self) -> Base | None:
        """The base of an adapter that names none, and the model that a dashboard begins with.

        This is None where nothing is served.
        """
        return next(iter(self._by_name.values()), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all pools, the default first."""
        return tuple(self._by_name)

    def named(self, name: str) -> Base | None:
        """Return the base model of the pool with this name; None if there is no such pool."""
        return self._by_name.get(name)

    def visible(self, project_id: str, organization_id: str) -> Mapping[str, Base]:
        """Return the bases that a project may use, by the name of their pool."""
        if self._open is not None:
            return self._open
        return {name: base for name, base in self._by_name.items() if base.is_for(project_id, organization_id)}

    def is_visible(self, name: str, project_id: str, organization_id: str) -> bool:
        """Tell whether there is a pool of this name that a project may use."""
        base = self._by_name.get(name)
        return base is not None and base.is_for(project_id, organization_id)

    def pools_of(self, digest: str | None) -> list[str]:
        """Return the names of the pools that serve a base; [] for a base that is not served here.

        digest: the digest of the base; None stands for the default base, to which rows from before bases were recorded
        belong.
        """
        if digest is None:
            digest = self.default.digest if self.default is not None else None
        return [base.name for base in self._by_name.values() if base.digest == digest]

    def shape_of(self, digest: str) -> BaseShape | None:
        """Return the shape of a base that is served here."""
        return next((base.shape for base in self._by_name.values() if base.digest == digest), None)

    def default_for(self, project_id: str, organization_id: str) -> Base | None:
        """Return the base for an adapter of a project that names none; None where the project may use no base."""
        return next(iter(self.visible(project_id, organization_id).values()), None)

    def name_of(self, digest: str | None, project_id: str, organization_id: str) -> str:
        """Return the name that the people of a project know a base by, also where it is not served any more.

        A base that only others may use has no name for them, but the beginning of its digest.
        """
        pools = self.pools_of(digest)
        known = [pool for pool in pools if self.is_visible(pool, project_id, organization_id)]
        anonymous = (digest or "")[:12]
        return known[0] if known else anonymous if pools else self._former_names.get(digest or "", anonymous)

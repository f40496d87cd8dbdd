"""Kubernetes' objects of a manifest, and the pods in them. Knows nothing of what they should be like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import yaml

Object = dict[str, Any]

LONG_RUNNING = ("StatefulSet", "Deployment", "RayCluster")


class Pod(msgspec.Struct, frozen=True):
    """The template of pods that an object of a manifest makes."""

    kind: str
    """The kind of the object that makes the pods."""
    name: str
    labels: dict[str, str]
    spec: Object
    claims: list[Object]
    """The templates of volume claims: each pod has volumes of its own."""

    @property
    def containers(self) -> list[Object]:
        """All containers of the pod, including init containers."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def component(self) -> str:
        """The name of the pod's part in the installation."""
        return self.labels["app.kubernetes.io/component"]


def read(text: str) -> list[Object]:
    """Return the objects of a manifest."""
    return [each for each in yaml.safe_load_all(text) if each]


def named(objects: Iterable[Object], kind: str, name: str | None = None) -> Object:
    """Return the first object of a kind, of this name if one is given. Raises LookupError: when there is none."""
    for each in objects:
        if each["kind"] == kind and name in (None, each["metadata"]["name"]):
            return each
    raise LookupError(f"{kind} {name}")


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def pods(objects: Iterable[Object]) -> Iterator[Pod]:
    """Yield the pod templates of all objects that have one."""
    for each in objects:
        spec, name = each.get("spec", {}), each["metadata"]["name"]
        if each["kind"] in ("StatefulSet", "Deployment", "Job"):
            yield _pod(each["kind"], name, spec["template"], spec.get("volumeClaimTemplates", []))
        if each["kind"] == "RayCluster":
            for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
                yield _pod(each["kind"], f"{name}-{group.get('groupName', 'head')}", group["template"], [])


def _pod(kind: str, name: str, template: Object, claims: list[Object]) -> Pod:
    return Pod(kind, name, template["metadata"]["labels"], template["spec"], claims)


def variables(container: Object) -> dict[str, str]:
    """Return the variables of a container that are set to a literal value."""
    return {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Tell whether a selector matches an object with these labels. An empty one matches everything."""
    takes = all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
    for each in selector.get("matchExpressions", []):
        assert each["operator"] == "In", each
        takes = takes and labels.get(each["key"]) in each["values"]
    return takes

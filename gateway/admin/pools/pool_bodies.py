"""The bodies of requests that make or change a pool, and the checks of each field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import httpx
import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.paging import wrong_value
from gateway.admin.pools.host_tokens import Excluded, Labels, check_excluded, check_labels
from gateway.db.pools.managed import has_alias, unknown_grants
from gateway.db.pools.pools import Grant
from gateway.domain.errors import Conflict
from gateway.domain.pools.drivers import OWN_DRIVER, Driver
from gateway.domain.pools.foreign_settings import MAX_URL_CHARS, check_server_url, parse_foreign_settings
from gateway.domain.pools.model_source import check_model_source
from gateway.domain.pools.scaling import DOWN_AFTER_S, Bounds
from gateway.domain.pools.settings import BadSetting, parse_settings
from gateway.domain.pools.states import Access, check_pool_name
from gateway.support.outbound import names_metadata_service, names_private_address

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_GRANTS = 1000
MAX_SETTINGS = 64
MAX_URLS = 64

Id = Annotated[str, Meta(min_length=1, max_length=64)]
NumReplicas = Annotated[int, Meta(ge=0, le=1000)]
SettingValue = Annotated[str, Meta(max_length=256)] | bool | int | float
Settings = Annotated[dict[Annotated[str, Meta(max_length=64)], SettingValue], Meta(max_length=MAX_SETTINGS)]


Urls = Annotated[tuple[Annotated[str, Meta(max_length=MAX_URL_CHARS)], ...], Meta(max_length=MAX_URLS)]


class PoolGrantIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An organization, or one project of it, that may use a pool whose access is "listed"."""

    organization_id: Id | None = None
    """Id of the organization; the organization of the caller if left out."""
    project_id: Id | None = None
    """Id of a project of the organization; all projects of the organization if left out."""


Grants = Annotated[tuple[PoolGrantIn, ...], Meta(max_length=MAX_GRANTS)]


class PoolScalingIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds between which the number of replicas follows the load."""

    max_replicas: Annotated[int, Meta(ge=1, le=1000)]
    """The most replicas that run."""
    min_replicas: NumReplicas = 1
    """The fewest replicas that run. With 0 the last one stops when no request came for `down_after_seconds`, and the
    next request waits until one has started."""
    down_after_seconds: Annotated[int, Meta(ge=10, le=86400)] = DOWN_AFTER_S
    """Seconds for which a replica must not have been needed before it stops."""


class CreatePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new pool: a base model under a name, the number of engines that serve it, and the tenants that may use it."""

    name: str
    """The name by which requests ask for the base model. No two pools of the installation have the same name."""
    model: str = ""
    """The base model: `demo`, `demo-random`, the absolute path of a folder or of a `.gguf` file on the hosts, or a
    repository id of the Hugging Face hub. With an `engine` of another maker it is the model whose tokenizer is used,
    and may be left out: the server gets text then, and prompts are bounded by their bytes."""
    engine: Driver = OWN_DRIVER
    """The servers behind the pool: `lorikeet` for engines of Lorikeet, which agents start, or the name of a driver for
    servers of another maker, which run already at `urls`. Servers of `llamacpp` and `vllm` are started by agents where
    no `urls` are given."""
    urls: Urls = ()
    """Addresses of the servers, with an `engine` of another maker: `http://` or `https://`, each a replica."""
    settings: Settings = {}
    """Engine settings that differ from the hosts' own, by name, such as `max_model_len`; with an `engine` of another
    maker, settings of the driver, such as `served_model`."""
    num_replicas: NumReplicas | UnsetType = UNSET
    """Number of engines that shall run, 1 if left out; not with `urls`. With `scaling` it is the number at first, and
    `min_replicas` if left out."""
    scaling: PoolScalingIn | None = None
    """Bounds between which the number of replicas follows the load; the number stays as it is set if left out."""
    placement: Labels = {}
    """Labels that a host must have for replicas to start there, such as `{"zone": "west"}`; not with `urls`."""
    exclusion: Excluded = {}
    """Values that labels of a host must not have for replicas to start there, such as `{"disk": ["hdd"]}`; not with
    `urls`."""
    access: Access = "all"
    """Projects that may use the pool: `all` projects of the installation, or the ones that are `listed` in `grants`."""
    grants: Grants = ()
    """Organizations and projects that may use a pool whose access is `listed`."""


class UpdatePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a pool. A field that is left out stays as it is."""

    model: str | UnsetType = UNSET
    """Another base model, which becomes a new revision of the pool."""
    settings: Settings | UnsetType = UNSET
    """Engine settings in place of all former ones, which become a new revision of the pool."""
    urls: Urls | UnsetType = UNSET
    """Addresses of the servers of another maker in place of all former ones, which become a new revision."""
    num_replicas: NumReplicas | UnsetType = UNSET
    """Number of engines that shall run. With `scaling` within the bounds, and only for now."""
    scaling: PoolScalingIn | UnsetType | None = UNSET
    """Bounds between which the number of replicas follows the load; null has the number stay as it is set."""
    placement: Labels | UnsetType = UNSET
    """Labels that a host must have for replicas to start there, in place of all former ones. Replicas on other hosts go
    as soon as others are ready."""
    exclusion: Excluded | UnsetType = UNSET
    """Values that labels of a host must not have for replicas to start there, in place of all former ones. Replicas on
    hosts that have them go as soon as others are ready."""
    access: Access | UnsetType = UNSET
    """Projects that may use the pool: `all` projects of the installation, or the ones that are `listed` in `grants`."""
    allow_unfit_adapters: bool = False
    """True to change the base model though adapters of the present one do not fit the new one: these no longer answer.
    Without it such a change is refused with the names of the adapters."""
    grants: Grants | UnsetType = UNSET
    """Organizations and projects that may use a pool whose access is `listed`, in place of all former grants."""


def check_scaling(scaling: PoolScalingIn, num_replicas: int | UnsetType, *, is_managed: bool) -> Bounds:
    """Return the bounds of an automatic number of replicas. is_managed: whether agents start the replicas.

    Raises InvalidRequest: when agents do not start the replicas, or the bounds contradict each other or num_replicas.
    """
    if not is_managed:
        raise wrong_value("scaling", "agents start no servers of this pool, so their number is that of its 'urls'")
    if scaling.min_replicas > scaling.max_replicas:
        raise wrong_value("scaling.min_replicas", f"it is more than max_replicas, {scaling.max_replicas}")
    bounds = Bounds(scaling.min_replicas, scaling.max_replicas, float(scaling.down_after_seconds))
    if num_replicas is not UNSET:
        check_within(bounds, num_replicas)
    return bounds


def check_placement(placement: Mapping[str, str], exclusion: Mapping[str, Sequence[str]], *, is_managed: bool) -> None:
    """Check the labels by which a pool chooses hosts. is_managed: whether agents start the replicas.

    Raises InvalidRequest: for labels that no host can have, or for any where agents start no replicas.
    """
    check_labels(placement, "placement")
    check_excluded(exclusion)
    for field, labels in (("placement", placement), ("exclusion", exclusion)):
        if labels and not is_managed:
            raise wrong_value(field, "agents start no servers of this pool")
    for name, value in placement.items():
        if value in exclusion.get(name, ()):
            raise wrong_value("exclusion", f"'placement' asks for {name}={value}, so that no host would do")


def check_within(bounds: Bounds, num_replicas: int) -> None:
    """Check that a number of replicas is within the bounds.

    Raises InvalidRequest: when the number is outside of the bounds.
    """
    if not bounds.min_replicas <= num_replicas <= bounds.max_replicas:
        raise wrong_value(
            "num_replicas",
            f"it follows the load between {bounds.min_replicas} and {bounds.max_replicas}: change 'scaling', or set "
            "'scaling' to null",
        )


def check_name(name: str) -> None:
    """Check the name of a pool.

    Raises InvalidRequest: for a name that no pool may have.
    """
    try:
        check_pool_name(name)
    except ValueError as error:
        raise wrong_value("name", _as_reason(str(error))) from None


def check_model(model: str) -> None:
    """Check the text that names a pool's base model.

    Raises InvalidRequest: for a text that names no model.
    """
    try:
        check_model_source(model)
    except ValueError as error:
        raise wrong_value("model", _as_reason(str(error))) from None


def read_settings(settings: dict[str, str | bool | int | float], driver: Driver) -> dict[str, str]:
    """Return the settings of engines, or of another driver, as texts.

    Raises InvalidRequest: when a setting is unknown or its value is wrong; the error names the setting.
    """
    texts = {name: _text_of(value) for name, value in settings.items()}
    try:
        if driver == OWN_DRIVER:
            parse_settings(texts)
        else:
            parse_foreign_settings(texts)
    except BadSetting as error:
        raise wrong_value(f"settings.{error.name}", _as_reason(error.reason)) from None
    return texts


def read_urls(urls: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Return the addresses of servers of another maker.

    settings: the settings of their driver, whose values are good.

    Raises InvalidRequest: for a wrong address, which the message names.
    """
    if not urls:
        raise wrong_value("urls", "a pool of servers of another maker needs the address of at least one")
    allows_private, found = parse_foreign_settings(settings).allow_private, list[str]()
    for place, url in enumerate(urls):
        try:
            good = check_server_url(url)
        except ValueError as error:
            raise wrong_value(f"urls[{place}]", str(error)) from None
        if good in found:
            raise wrong_value(f"urls[{place}]", "it is given twice")
        if names_metadata_service(httpx.URL(good)):
            raise wrong_value(f"urls[{place}]", "it leads to a cloud's metadata service, where no server may be")
        if not allows_private and names_private_address(httpx.URL(good)):
            raise wrong_value(
                f"urls[{place}]", "it leads to a private address, which the setting allow_private=true would allow"
            )
        found.append(good)
    return found


def _text_of(value: str | bool | int | float) -> str:
    """Return a setting's value as text in the form that engines read: a number with all its digits, 8192.0 as 8192."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


async def read_grants(conn: Connection, organization_id: str, wanted: Sequence[PoolGrantIn]) -> list[Grant]:
    """Return the grants that a request names, as rows have them. organization_id: the caller's organization.

    Raises InvalidRequest: when a grant is given twice, or there is no organization or project with the id.
    """
    grants = [Grant(each.organization_id or organization_id, each.project_id) for each in wanted]
    for place, grant in enumerate(grants):
        if grant in grants[:place]:
            raise wrong_value(f"grants[{place}]", "it is given twice")
    for place in await unknown_grants(conn, grants):
        field = "organization_id" if grants[place].project_id is None else "project_id"
        raise wrong_value(f"grants[{place}].{field}", "there is none with this id")
    return grants


BearerKey = Annotated[str, Meta(min_length=1, max_length=1024, pattern="^[!-~]+$")]
"""A key that is sent to servers of other makers as a bearer token."""


class SetBackendKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key that the servers of a pool ask for."""

    key: BearerKey
    """The key as the servers take it, sent to them as a bearer token. It is kept encrypted and never shown again."""


def check_access(access: Access, grants: Sequence[PoolGrantIn | Grant]) -> None:
    """Check that grants are given if, and only if, the access is "listed".

    Raises InvalidRequest: when access and grants contradict each other.
    """
    if access == "listed" and not grants:
        raise wrong_value("grants", "a pool whose access is 'listed' needs one grant at least")
    if access == "all" and grants:
        raise wrong_value("grants", "they belong to the access 'listed', and the access is 'all'")


async def check_aliases(conn: Connection, name: str, access: Access, grants: Sequence[Grant]) -> None:
    """Check that no project that may use the pool has an alias or a route of the pool's name.

    Requests of such a project would get the pool instead.

    Raises Conflict: when a project has such an alias or route.
    """
    if await has_alias(conn, name, access, grants):
        raise Conflict(f"A tenant that may use the pool has an alias or a route named '{name}'.", param="name")


def _as_reason(sentence: str) -> str:
    """Return a sentence without its capital letter and its full stop, to follow a colon."""
    message = sentence.removesuffix(".")
    return message[:1].lower() + message[1:]

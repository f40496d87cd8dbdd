"""The queries over buckets of time that usage and costs share, in OpenAI's form, and pages of buckets.

A bucket begins where its width does in UTC; a start_time inside of one counts from its beginning. Lists come as
OpenAI's client writes them (`models[]=a&models[]=b`) or plainly.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from litestar.datastructures import MultiDict

from gateway.admin.common import utc_time
from gateway.admin.paging import wrong_value
from gateway.db.ledger.usage_sums import SumQuery, Width
from gateway.domain.errors import InvalidRequest
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import projects_with
from gateway.domain.tenancy.principal import Permission
from gateway.http.shape import Shape, shape

PERMISSION: Permission = "billing.read"
MAX_VALUES = 100
COMMON = ("start_time", "end_time", "bucket_width", "limit", "page")
CURSOR = "page_"


class Bounds(msgspec.Struct, frozen=True):
    """The bounds of one bucket width: its seconds, and the number of buckets on a page."""

    width: Width
    seconds: int
    default_limit: int
    """The number of buckets on a page where the request names none."""
    max_limit: int


WIDTHS: Mapping[str, Bounds] = {
    "1m": Bounds("minute", 60, 60, 1440),
    "1h": Bounds("hour", 3600, 24, 168),
    "1d": Bounds("day", 86_400, 7, 31),
}


class BucketQuery(msgspec.Struct, frozen=True):
    """The buckets of a page. Times are in Unix seconds, on buckets' borders."""

    bounds: Bounds
    start: int
    """The beginning of this page in Unix seconds."""
    end: int
    """The end of this page in Unix seconds."""
    next_start: int | None
    """The beginning of the next page in Unix seconds; None where there is none."""


ResultT = TypeVar("ResultT", bound=msgspec.Struct)


class Bucket(msgspec.Struct, Generic[ResultT], frozen=True):
    """A span of time, and the result of each group within that span."""

    start_time: int
    end_time: int
    results: Sequence[ResultT]
    object: Literal["bucket"] = "bucket"


class BucketPage(msgspec.Struct, Generic[ResultT], frozen=True):
    """A page of buckets of time, the earliest first."""

    data: list[Bucket[ResultT]]
    has_more: bool
    next_page: str | None
    object: Literal["page"] = "page"


def list_params(*names: str) -> tuple[str, ...]:
    """Return both spellings of each query parameter that is a list: with and without `[]`."""
    return tuple(spelling for name in names for spelling in (name, f"{name}[]"))


def bucket_shape(widths: Mapping[str, Bounds], group_by: Sequence[str]) -> dict[str, Shape]:
    """Return the `opt` of a route handler that describes the query parameters of buckets."""
    seconds = {"type": "integer", "minimum": 0, "maximum": 9_999_999_999, "description": "Unix seconds."}
    limits = [f"for {name} by default {each.default_limit}, at most {each.max_limit}" for name, each in widths.items()]
    most = max(each.max_limit for each in widths.values())
    values = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_VALUES}
    lists = dict.fromkeys(list_params("project_ids", "user_ids", "api_key_ids", "models"), values)
    groups = {"type": "array", "items": {"enum": list(group_by)}, "maxItems": MAX_VALUES}
    schemas = lists | dict.fromkeys(list_params("group_by"), groups)
    schemas |= {
        "start_time": seconds,
        "end_time": seconds,
        "bucket_width": {"enum": list(widths), "default": "1d"},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": most,
            "description": f"The most buckets in a reply: {'; '.join(limits)}.",
        },
        "batch": {"type": "boolean"},
    }
    return shape(query=schemas, needed=("start_time",))


def read_buckets(params: MultiDict[Any], widths: Mapping[str, Bounds], now: datetime.datetime) -> BucketQuery:
    """Read the window and the width of buckets.

    Raises InvalidRequest: when a parameter is missing or wrong; the error names the parameter.
    """
    bounds = widths.get(params.get("bucket_width", "1d"))
    if bounds is None:
        raise wrong_value("bucket_width", f"expected one of {', '.join(widths)}")
    if "start_time" not in params:
        raise InvalidRequest(
            "Missing required parameter: 'start_time'.", param="start_time", code="missing_required_parameter"
        )
    seconds = bounds.seconds
    start = read_time(params, "start_time") // seconds * seconds
    end = read_time(params, "end_time") if "end_time" in params else int(now.timestamp())
    if end <= start:
        raise wrong_value("end_time", "the end must be after start_time")
    end = -(-end // seconds) * seconds
    limit = _limit(params, bounds)
    if "page" in params:
        cursor = _read_cursor(params["page"])
        if cursor is None or cursor % seconds or not start < cursor < end:
            raise wrong_value("page", "expected next_page of the page before, with all other parameters unchanged")
        start = cursor
    page_end = min(end, start + limit * seconds)
    return BucketQuery(bounds, start, page_end, page_end if page_end < end else None)


def sum_query(params: MultiDict[Any], buckets: BucketQuery, caller: Actor, group_by: tuple[str, ...]) -> SumQuery:
    """Read the filters and groups of a query of sums.

    Raises InvalidRequest: when a parameter is wrong; the error names the parameter.
    """
    groups = read_values(params, "group_by")
    if unknown := [group for group in groups if group not in group_by]:
        raise wrong_value("group_by", f"'{unknown[0]}' is not one of {', '.join(group_by)}")
    batch = params.get("batch")
    if batch not in (None, "true", "false"):
        raise wrong_value("batch", "expected true or false")
    return SumQuery(
        organization_id=caller.organization_id,
        width=buckets.bounds.width,
        start=utc_time(buckets.start),
        end=utc_time(buckets.end),
        project_ids=read_projects(params, caller),
        api_key_ids=read_values(params, "api_key_ids"),
        user_ids=read_values(params, "user_ids"),
        models=read_values(params, "models"),
        batch=None if batch is None else batch == "true",
        group_by=groups,
    )


class HasBucket(Protocol):
    """A sum over one bucket of time."""

    @property
    def bucket(self) -> datetime.datetime:
        """The start of the bucket."""
        ...


T = TypeVar("T", bound=HasBucket)


def bucket_page(query: BucketQuery, sums: Sequence[T], wire: Callable[[T], ResultT]) -> BucketPage[ResultT]:
    """Return every bucket of the page, those without usage too, with its sums.

    The sums are given in the order of their buckets.
    """
    seconds = query.bounds.seconds
    results: dict[int, list[ResultT]] = {start: [] for start in range(query.start, query.end, seconds)}
    for each in sums:
        results[int(each.bucket.timestamp())].append(wire(each))
    return BucketPage(
        data=[Bucket(start, start + seconds, shown) for start, shown in results.items()],
        has_more=query.next_start is not None,
        next_page=None if query.next_start is None else _cursor(query.next_start),
    )


def read_projects(params: MultiDict[Any], caller: Actor, permission: Permission = PERMISSION) -> list[str] | None:
    """Return the projects that are asked for and in which the caller has the permission.

    None stands for all projects of the organization.

    A project of another organization counts as a project without usage.
    """
    wanted = read_values(params, "project_ids")
    visible = projects_with(caller, permission)
    if visible is None:
        return wanted or None
    return [project_id for project_id in visible if not wanted or project_id in wanted]


def read_values(params: MultiDict[Any], name: str) -> list[str]:
    """Return the values of a list parameter, which clients spell with or without `[]` after its name.

    Raises InvalidRequest: when there are more than `MAX_VALUES` values.
    """
    values = [str(value) for spelling in (name, f"{name}[]") for value in params.getall(spelling, [])]
    if len(values) > MAX_VALUES:
        raise wrong_value(name, f"expected at most {MAX_VALUES} values")
    return values


def read_time(params: MultiDict[Any], name: str) -> int:
    """Return the Unix seconds of a parameter that the query has.

    Raises InvalidRequest: when the value is not a whole number of at most ten digits.
    """
    value = str(params[name])
    if not (value.isascii() and value.isdecimal() and len(value) <= 10):
        raise wrong_value(name, "expected Unix seconds")
    return int(value)


def _limit(params: MultiDict[Any], bounds: Bounds) -> int:
    value = str(params.get("limit", bounds.default_limit))
    if not (value.isascii() and value.isdecimal() and len(value) <= 4 and 1 <= int(value) <= bounds.max_limit):
        raise wrong_value("limit", f"expected a whole number from 1 to {bounds.max_limit}")
    return int(value)


def _cursor(start: int) -> str:
    return CURSOR + base64.urlsafe_b64encode(str(start).encode()).decode().rstrip("=")


def _read_cursor(text: str) -> int | None:
    encoded = text.removeprefix(CURSOR)
    try:
        decoded = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
    return int(decoded) if decoded.isascii() and decoded.isdecimal() and len(decoded) <= 10 else None

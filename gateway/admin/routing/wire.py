"""Routes on the wire: bodies and replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.db.routing.routes import PolicyRow, RouteVersionRow
from gateway.domain.tenancy.principal import ServiceTier

Version = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Id = Annotated[str, Meta(max_length=64, pattern="^[A-Za-z0-9_-]+$")]
Text = Annotated[str, Meta(max_length=512, pattern="^[^\\x00-\\x1f]*$")]
NumTokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class UpdateRoute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new version of a route."""

    document: dict[str, Any]
    """The routing policy: `{"root": NODE}`, where a node is one of `target`, `weighted`, `fallback`, `conditional`,
    `cheapest`, `fastest`, `cascade`, `hedge` and `shadow`."""


class CreateRoute(UpdateRoute, frozen=True, forbid_unknown_fields=True):
    """A new route."""

    name: str
    """The model id of the route, of the same form as the model id of an alias; no alias may have the same one."""


class RollBackRoute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version of a route that is to answer again."""

    version: Version


class ExplainRoute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to explain; fields that are left out have the values of a usual request."""

    request_id: Id | None = None
    """The id of a request, whose draws are made again; null for a new one."""
    user: Text | None = None
    """The end user that the request names."""
    api_key_id: Id | None = None
    """The id of the API key, for choices that stick to the key."""
    metadata: dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]] = {}
    """The request's metadata."""
    num_prompts: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """The number of prompts."""
    prompt_tokens: NumTokens = 0
    """The size of the prompt in tokens."""
    max_tokens: NumTokens = 256
    """The most tokens of each completion."""
    n: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """The number of completions."""
    tools: bool = False
    """True if the request brings tools."""
    service_tier: ServiceTier = "default"
    """The request's service tier."""
    stream: bool = False
    """True if the reply is streamed."""
    time: Annotated[str, Meta(max_length=5)] | None = None
    """The time of day in UTC as HH:MM; null for now."""
    version: Version | None = None
    """The version of the route to explain; null for the one that answers."""


class ExplainModel(ExplainRoute, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to a model to explain."""

    model: Annotated[str, Meta(min_length=1, max_length=256, pattern="^[^\\x00-\\x1f]+$")]
    """The model string, as the request would have it."""
    body: dict[str, Any] | None = None
    """The body of the request, of chat completions or completions: it says what the request is like in place of the
    other fields, but for the key, the request id, the time and the version."""


class RoutingPolicy(msgspec.Struct, frozen=True):
    """A model id that a routing policy stands behind."""

    id: str
    name: str
    version: int
    """The version that answers requests."""
    document: dict[str, Any]
    """The routing policy of that version."""
    created_at: int
    """Unix seconds."""
    changed_at: int
    """Unix seconds at which another version last began to answer."""
    object: Literal["organization.project.route"] = "organization.project.route"


class SharedRoute(msgspec.Struct, frozen=True):
    """A route that the organization has made for all projects, as a project sees it."""

    id: str
    name: str
    """The model id."""
    version: int
    """The version that answers requests."""
    is_hidden: bool
    """True where the project has an alias, an experiment or a route of the same name, which answers instead."""
    object: Literal["organization.project.shared_route"] = "organization.project.shared_route"


class RouteVersion(msgspec.Struct, frozen=True):
    """A version of a route."""

    id: str
    """The number of the version, as `after` takes it."""
    version: int
    document: dict[str, Any]
    created_at: int
    """Unix seconds."""
    object: Literal["organization.project.route.version"] = "organization.project.route.version"


class DeletedRoute(msgspec.Struct, frozen=True):
    """A route that was deleted."""

    name: str
    deleted: Literal[True] = True
    object: Literal["organization.project.route.deleted"] = "organization.project.route.deleted"


class ExplainedCopy(msgspec.Struct, frozen=True):
    """A copy of the request for a model whose answer nobody sees."""

    target: str
    path: str
    """The path of the node that asks for the copy."""
    payer: str | None
    """The id of the project that pays for the copy; null for the one that sends the request."""


class ExplainedStep(msgspec.Struct, frozen=True):
    """An attempt at the request."""

    target: str
    """The model that is tried."""
    path: str
    """The path of the target's node in the document."""
    then: dict[str, int]
    """The number, from 0, of the attempt that follows, by the error after which it is made."""
    first_token_ms: int | None
    """The time that the attempt may take to its first token; null for no bound."""
    has_check: bool
    """True if the answer is checked before it is sent, and another attempt follows one that is not accepted."""
    hedge_ms: float | None
    """The time after which the target is tried on another replica as well; null for no such try."""
    wait_ms: int
    """The time to wait before the attempt."""
    copies: list[ExplainedCopy]
    """The copies of the request that are made if the attempt answers."""


class ExplainedEdge(msgspec.Struct, frozen=True):
    """A decision of the policy."""

    path: str
    reason: str


class ExplainedTarget(msgspec.Struct, frozen=True):
    """A target of the route, as it is now on the gateway that answers."""

    target: str
    is_usable: bool
    """False where the project has no such model any more."""
    is_ready: bool
    """True if a replica takes requests."""
    input_nanos: int
    """The price of a million prompt tokens, in nanos."""
    output_nanos: int
    """The price of a million completion tokens, in nanos."""
    first_token_ms: float | None
    """The measured time to the first token; null without a recent measurement."""
    late_ms: float | None
    """The time in which 19 of 20 first tokens came; null where too few were measured."""
    token_ms: float | None
    """The measured time of each further token; null without a recent measurement."""


class RouteExplanation(msgspec.Struct, frozen=True):
    """The plan of a route for one request."""

    name: str
    version: int
    request_id: str
    """The id under which draws were made."""
    steps: list[ExplainedStep]
    """The attempts, numbered from 0. The attempt 0 is made first. Empty where no target can be used."""
    trace: list[ExplainedEdge]
    """The decisions of the policy, in the order in which the policy made them."""
    targets: list[ExplainedTarget]
    object: Literal["organization.project.route.explanation"] = "organization.project.route.explanation"


ModelKind = Literal["model", "experiment", "route", "shared_route"]
"""model: a base model, an adapter, or an alias of one. shared_route: a route of the organization."""


class ModelExplanation(msgspec.Struct, frozen=True):
    """The models that would be tried for a request, and why."""

    model: str
    kind: ModelKind
    version: int | None
    """The version of the route; null for a model that is no route."""
    is_allowed: bool
    """False where the API key may not use the model: the request would be told that there is no such model."""
    request_id: str
    """The id under which draws were made."""
    prompt_tokens: int
    """The estimated tokens of all prompts, as the conditions of routes see them."""
    steps: list[ExplainedStep]
    """The attempts, numbered from 0. The attempt 0 is made first. Empty where no target can be used."""
    trace: list[ExplainedEdge]
    """The decisions of the policy, in the order in which the policy made them."""
    targets: list[ExplainedTarget]
    object: Literal["organization.project.explanation"] = "organization.project.explanation"


def route_wire(row: PolicyRow) -> RoutingPolicy:
    """Return a route as replies show it."""
    document = msgspec.json.decode(row.document)
    created_at, changed_at = int(row.created_at.timestamp()), int(row.changed_at.timestamp())
    return RoutingPolicy(row.id, row.name, row.version, document, created_at, changed_at)


def shown_version(row: RouteVersionRow) -> RouteVersion:
    """Return a version of a route as replies show it."""
    return RouteVersion(
        str(row.version), row.version, msgspec.json.decode(row.document), int(row.created_at.timestamp())
    )

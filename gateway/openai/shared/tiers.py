"""The service tier of a request, checked against the tiers that its project may use."""

from __future__ import annotations

from gateway.domain.errors import InvalidRequest
from gateway.domain.tenancy.principal import Principal, ServiceTier


def service_tier(wanted: str | None, caller: Principal) -> ServiceTier:
    """Return the service tier that a request asks for.

    wanted: the request's field; None: the default tier.

    Raises InvalidRequest: for a tier that is not served, or that the caller's project may not use.
    """
    match wanted:
        case None | "auto" | "default":
            return "default"
        case "flex" | "priority":
            if wanted in caller.service_tiers:
                return wanted
            raise InvalidRequest(
                f"Your project may not use the service tier '{wanted}'. It may use: 'auto', "
                f"{', '.join(repr(tier) for tier in sorted(caller.service_tiers))}.",
                param="service_tier",
                code="service_tier_not_allowed",
            )
    raise InvalidRequest(
        f"The service tier '{wanted}' is not supported: use 'auto', 'default', 'flex' or 'priority'.",
        param="service_tier",
        code="unsupported_value",
    )


def shown_tier(tier: ServiceTier, caller: Principal) -> str:
    """Return the service tier that a reply shows: `default` for a line of a batch.

    Lines have the tier `batch`, whatever they ask for. The types of OpenAI's clients lack that tier, so that a reply
    with it would be refused; the lines of OpenAI's own batches show `default`, too.
    """
    return "default" if caller.is_batch else tier

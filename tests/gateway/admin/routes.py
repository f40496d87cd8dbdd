"""The application's own route table, for tests that go through all routes, and a good body for every kind of
request."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

from gateway.admin.access import Access
from gateway.admin.adapters.adapter_imports import CreateAdapterImport
from gateway.admin.adapters.adapter_settings import SetAdapter
from gateway.admin.adapters.adapters import AddFromSource
from gateway.admin.adapters.aliases import CreateAlias, MoveAlias
from gateway.admin.adapters.shares import ShareAdapter
from gateway.admin.batches.batches import CreateProjectBatch
from gateway.admin.billing.adjustments import Adjust
from gateway.admin.billing.credits import GrantCredit, SetBilling
from gateway.admin.billing.deliveries import SetDelivery
from gateway.admin.billing.price_classes import SetPriceClass
from gateway.admin.billing.prices import SetPrices
from gateway.admin.billing.reconciliation import WriteOff
from gateway.admin.billing.stripe_customers import SetStripeCustomer
from gateway.admin.experiments.wire import (
    CreateExperiment,
    CreateFeedbackMetric,
    CreateHoldout,
    CreateLayer,
    DecideExperiment,
    ForgetUnit,
    ModifyExperiment,
)
from gateway.admin.experiments.wire_previews import CalibrateExperiment, PreviewExperiment
from gateway.admin.limits.limits import SetLimit
from gateway.admin.limits.rate_limits import UpdateRateLimit
from gateway.admin.limits.spend_alerts import SetSpendAlert
from gateway.admin.limits.spend_limits import UpdateSpendLimit
from gateway.admin.limits.webhooks import CreateWebhook, RotateWebhook
from gateway.admin.organization.admin_keys import CreateAdminKey
from gateway.admin.organization.key_states import RotateKey
from gateway.admin.organization.keys import CreateKey, ModifyKey
from gateway.admin.organization.logins import ChangePassword, Confirm, Proof, WithPassword
from gateway.admin.organization.members import AddMember, ModifyMember
from gateway.admin.organization.passkeys import AddPasskey, RenamePasskey
from gateway.admin.organization.projects import ArchiveProject, CreateProject, LogContent, ModifyProject
from gateway.admin.organization.service_accounts import CreateServiceAccount
from gateway.admin.organization.users import CreateUser, ModifyUser, ResetUser
from gateway.admin.pools.host_tokens import CreateHostToken
from gateway.admin.pools.hosts import SetHost
from gateway.admin.pools.pool_bodies import CreatePool, SetBackendKey, UpdatePool
from gateway.admin.pools.provider_keys import SetProviderKey
from gateway.admin.routing.wire import CreateRoute, ExplainModel, ExplainRoute, RollBackRoute, UpdateRoute
from gateway.http.shape import Shape

EXPERIMENT: dict[str, Any] = {
    "name": "support-tone",
    "model": "support-test",
    "unit": {"from": "safety_identifier"},
    "arms": [
        {"name": "control", "weight": 1, "target": {"model": "tiny:pirate@1"}},
        {"name": "warm", "weight": 1, "target": {"model": "tiny:pirate@2", "defaults": {"temperature": 0.2}}},
    ],
    "metrics": {"primary": [{"metric": "cost_nanos", "goal": "decrease"}]},
    "coverage": 2000,
    "layer": "default",
    "holdout": None,
    "shadow": None,
    "analysis": {"alpha": 0.05},
}
ROUTE: dict[str, Any] = {"root": {"fallback": {"nodes": [{"target": "tiny"}]}}}
GOOD_BODIES: dict[type[msgspec.Struct], dict[str, Any]] = {
    SetHost: {"is_drained": True, "labels": {"zone": "a"}},
    CreateHostToken: {"name": "b", "labels": {"zone": "a"}},
    SetAdapter: {"defaults": {"temperature": 0.5, "system_prompt": None}, "pinned": False},
    MoveAlias: {"adapter": "pirate", "version": 1},
    CreateAlias: {"name": "support-bot", "adapter": "pirate", "version": 1},
    UpdateRoute: {"document": ROUTE},
    CreateRoute: {"name": "router", "document": ROUTE},
    RollBackRoute: {"version": 1},
    ExplainRoute: {
        "request_id": "req_x",
        "user": "ann",
        "api_key_id": "key_x",
        "metadata": {"plan": "free"},
        "num_prompts": 1,
        "prompt_tokens": 9,
        "max_tokens": 9,
        "n": 1,
        "tools": False,
        "service_tier": "default",
        "stream": False,
        "time": "09:00",
        "version": 1,
    },
    ExplainModel: {
        "model": "tiny",
        "body": {"messages": [{"role": "user", "content": "x"}]},
        "request_id": "req_x",
        "user": "ann",
        "api_key_id": "key_x",
        "metadata": {"plan": "free"},
        "num_prompts": 1,
        "prompt_tokens": 9,
        "max_tokens": 9,
        "n": 1,
        "tools": False,
        "service_tier": "default",
        "stream": False,
        "time": "09:00",
        "version": 1,
    },
    ShareAdapter: {"project_id": "proj_x"},
    AddFromSource: {"name": "x", "source": "https://models.example.com/x.tar", "promote": True, "base": "tiny"},
    CreateExperiment: EXPERIMENT,
    ModifyExperiment: EXPERIMENT | {"version": 1},
    DecideExperiment: {"arm": "warm"},
    PreviewExperiment: {
        "experiment_id": "exp_x",
        "unit": "ann",
        "metric": "cost_nanos",
        "relative_effect": 0.1,
        "power": 0.8,
        "alpha": 0.05,
        "num_arms": 2,
        "num_primary": 1,
        "coverage": 10_000,
        "outcome_window_seconds": 3_600,
        "min_days": 7,
        "past_days": 28,
        "past_units": "request",
    },
    CalibrateExperiment: {
        "metric": "cost_nanos",
        "past_days": 28,
        "past_units": "request",
        "alpha": 0.05,
        "tightest_at": 5000,
        "runs": 10,
    },
    CreateFeedbackMetric: {
        "name": "thumbs-up",
        "type": "boolean",
        "goal": "increase",
        "kind": "mean",
        "least": None,
        "most": None,
        "labels": None,
        "description": "",
    },
    CreateLayer: {"name": "search"},
    CreateHoldout: {"name": "quarter", "size": 500},
    ForgetUnit: {"unit": "ann@example.com"},
    AddMember: {"user_id": "user_x", "role": "viewer"},
    Adjust: {
        "direction": "refund",
        "amount_nanos": 1,
        "reason": "x",
        "corrects_period": None,
        "corrects_request_id": None,
    },
    ArchiveProject: {"retention_days": 1},
    ChangePassword: {"password": "x", "new_password": "a long new password"},
    Confirm: {"code": "000000"},
    CreateAdapterImport: {"name": "x", "size_bytes": 1, "promote": True, "sha256": "0" * 64, "base": "tiny"},
    CreateAdminKey: {"name": "x", "scopes": ["admin_read"], "expires_at": None, "ip_allowlist": ["10.0.0.0/8"]},
    CreateKey: {
        "name": "x",
        "scopes": ["inference"],
        "expires_at": None,
        "models": ["tiny"],
        "ip_allowlist": ["10.0.0.0/8"],
        "service_account_id": None,
    },
    CreatePool: {
        "name": "x",
        "model": "demo",
        "engine": "lorikeet",
        "urls": [],
        "settings": {"max_num_seqs": "8"},
        "scaling": None,
        "placement": {},
        "exclusion": {},
        "num_replicas": 0,
        "access": "all",
        "grants": [],
    },
    CreateProject: {"name": "x"},
    CreateProjectBatch: {
        "input_file_id": f"file_{'a' * 24}",
        "endpoint": "/v1/completions",
        "api_key_id": f"key_{'a' * 24}",
    },
    CreateServiceAccount: {"name": "x"},
    CreateUser: {"email": "x@example.com", "name": "X", "role": "viewer", "password": "a long new password"},
    CreateWebhook: {"url": "https://example.com/hook", "events": ["response.completed"]},
    RotateWebhook: {"grace_seconds": 1},
    GrantCredit: {"amount_nanos": 1, "reason": "x", "expires_at": None},
    LogContent: {"log_content_days": 0},
    ModifyKey: {
        "name": "x",
        "scopes": ["inference"],
        "expires_at": None,
        "models": ["tiny"],
        "ip_allowlist": ["10.0.0.0/8"],
    },
    ModifyMember: {"role": "viewer"},
    ModifyProject: {
        "name": "x",
        "keep_replies": True,
        "store_days": 0,
        "log_content_days": 0,
        "service_tiers": ["default"],
    },
    ModifyUser: {"name": "X", "role": "viewer"},
    ResetUser: {"password": "a long new password"},
    RotateKey: {"grace_seconds": 1},
    SetLimit: {
        "unit": "tokens",
        "max": 1,
        "window": "day",
        "hard": True,
        "model": None,
        "api_key_id": None,
        "alert_percents": [80],
    },
    SetBilling: {"mode": "postpaid"},
    SetDelivery: {
        "name": "x",
        "kind": "usage",
        "format": "csv",
        "schedule": "daily",
        "destination": {"type": "folder", "path": "x"},
        "from_period": "2026-01-01",
    },
    SetPriceClass: {"price_class": "big"},
    SetPrices: {
        "currency": "usd",
        "entries": [{"input_nanos_per_million": 2, "output_nanos_per_million": 3}],
        "discounts": [],
        "effective_at": None,
    },
    SetStripeCustomer: {"customer_id": "cus_x"},
    SetSpendAlert: {
        "threshold_amount": 1,
        "currency": "USD",
        "interval": "month",
        "notification_channel": {"type": "webhook"},
    },
    SetProviderKey: {"model": "tiny", "key": "sk-0123456789abcdef"},
    SetBackendKey: {"key": "sk-0123456789abcdef"},
    UpdatePool: {
        "model": "demo",
        "urls": ["http://10.0.0.7:8000"],
        "settings": {},
        "scaling": None,
        "placement": {},
        "exclusion": {},
        "num_replicas": 0,
        "access": "all",
        "grants": [],
        "allow_unfit_adapters": True,
    },
    Proof: {"password": "x", "code": "123456"},
    UpdateSpendLimit: {"threshold_amount": 1, "currency": "USD", "interval": "month"},
    UpdateRateLimit: {
        "max_requests_per_1_minute": 1,
        "max_tokens_per_1_minute": None,
        "max_requests_per_1_day": 1,
    },
    WithPassword: {"password": "x"},
    AddPasskey: {"name": "laptop", "credential_id": "AAAA", "client_data": "AAAA", "attestation": "AAAA"},
    RenamePasskey: {"name": "phone"},
    WriteOff: {"reason": "x"},
}


class Route(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    """A pattern with {name} for each parameter."""
    access: Access | None
    """The declaration of the route; None where the route has none."""
    query: tuple[str, ...] = ()
    """The parameters of a route outside of the admin API."""
    is_documented: bool = True
    """True if the OpenAPI document has the route; the document has none of the dashboard's files."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def at(self, **ids: str) -> str:
        """Return the path with these parameters filled in, and "unknown" for all others."""
        return re.sub(r"\{(\w+)\}", lambda match: ids.get(match[1], "unknown"), self.path)

    @property
    def params(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    @property
    def good_body(self) -> dict[str, Any] | None:
        """A body that is valid in every field; None where the route takes none."""
        if self.access is None or self.access.body is None:
            return None
        return dict(GOOD_BODIES.get(self.access.body, {}))


def routes_of(app: Litestar) -> list[Route]:
    """Return every method of every path, except OPTIONS, which describes other methods."""
    routes = []
    for route in app.routes:
        for handler in getattr(route, "route_handlers", []):
            assert isinstance(handler, HTTPRouteHandler)
            path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
            access, query = handler.opt.get("access"), tuple(handler.opt.get("shape", Shape()).query)
            told = handler.include_in_schema is not False
            routes += [Route(method, path, access, query, told) for method in handler.http_methods]
    return sorted((route for route in routes if route.method != "OPTIONS"), key=str)

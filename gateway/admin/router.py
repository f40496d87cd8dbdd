"""Puts the admin API's routes behind one guard and gives them their services."""

from __future__ import annotations

from typing import Any

from litestar import Request, Router
from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from gateway.admin.access import admin_guard, check_routes
from gateway.admin.adapters.adapter_imports import AdapterImportController
from gateway.admin.adapters.adapter_settings import AdapterSettingsController
from gateway.admin.adapters.adapter_versions import AdapterVersionController
from gateway.admin.adapters.adapters import AdapterController, list_all_adapters, verify_adapters
from gateway.admin.adapters.aliases import AliasController
from gateway.admin.adapters.shares import ShareController
from gateway.admin.batches.batches import BatchController
from gateway.admin.batches.files import FileController
from gateway.admin.billing.adjustments import AdjustmentController
from gateway.admin.billing.costs import CostController
from gateway.admin.billing.credits import CreditController
from gateway.admin.billing.deliveries import DeliveryController
from gateway.admin.billing.exports import ExportController, ProjectExportController
from gateway.admin.billing.invoices import InvoiceController
from gateway.admin.billing.periods import PeriodController
from gateway.admin.billing.price_classes import PriceClassController
from gateway.admin.billing.prices import PriceController
from gateway.admin.billing.reconciliation import ReconciliationController
from gateway.admin.billing.stripe_customers import StripeCustomerController
from gateway.admin.billing.usage import UsageController
from gateway.admin.content.request_contents import get_request_content
from gateway.admin.content.stored_contents import get_conversation_content, get_request_response
from gateway.admin.experiments.experiments import ExperimentController
from gateway.admin.experiments.exports import ExperimentExportController
from gateway.admin.experiments.layers import HoldoutController, LayerController
from gateway.admin.experiments.life import ExperimentLifeController
from gateway.admin.experiments.metrics import FeedbackMetricController
from gateway.admin.experiments.previews import PreviewController
from gateway.admin.experiments.results import ExperimentResultController
from gateway.admin.experiments.units import forget_experiment_unit
from gateway.admin.limits.limits import OrganizationLimitController, ProjectLimitController
from gateway.admin.limits.rate_limits import RateLimitController
from gateway.admin.limits.spend_alerts import OrganizationSpendAlertController, ProjectSpendAlertController
from gateway.admin.limits.spend_limits import OrganizationSpendLimitController, ProjectSpendLimitController
from gateway.admin.limits.webhooks import WebhookController
from gateway.admin.organization.admin_keys import AdminKeyController
from gateway.admin.organization.audit_logs import AuditLogController
from gateway.admin.organization.key_states import KeyStateController
from gateway.admin.organization.keys import KeyController, find_key
from gateway.admin.organization.logins import LoginController, UserLoginController, has_login, log_in
from gateway.admin.organization.members import MemberController
from gateway.admin.organization.organization import OrganizationController
from gateway.admin.organization.passkeys import (
    PasskeyController,
    UserPasskeyController,
    begin_passkey_login,
    log_in_by_passkey,
)
from gateway.admin.organization.projects import ProjectController
from gateway.admin.organization.search import search
from gateway.admin.organization.service_accounts import ServiceAccountController
from gateway.admin.organization.users import UserController
from gateway.admin.pools.host_tokens import create_host_token, join_host
from gateway.admin.pools.hosts import HostController
from gateway.admin.pools.pool_adapters import PoolAdapterController
from gateway.admin.pools.pool_keys import PoolKeyController
from gateway.admin.pools.pools import PoolController
from gateway.admin.pools.project_models import list_project_models
from gateway.admin.pools.provider_keys import ProviderKeyController
from gateway.admin.pools.replicas import ReplicaController
from gateway.admin.routing.explain import ExplainController
from gateway.admin.routing.routes import RouteController
from gateway.admin.routing.shared_routes import SharedRouteController, list_shared_routes
from gateway.admin.services import AdminServices
from gateway.admin.traffic.alerts import list_active_alerts
from gateway.admin.traffic.engines import list_engines
from gateway.admin.traffic.live import watch_live
from gateway.admin.traffic.refusals import ProjectRefusalController, RefusalController
from gateway.admin.traffic.requests import ProjectRequestController, RequestController
from gateway.admin.traffic.status import status
from gateway.admin.traffic.traffic import ProjectTrafficController, TrafficController
from gateway.domain.tenancy.actor import Actor
from gateway.http.envelope import OwnRouter

PATH = "/v1/organization"
LOGIN_PATH = "/admin/v1"


_HANDLERS: tuple[ControllerRouterHandler, ...] = (
    OrganizationController,
    ProjectController,
    MemberController,
    ServiceAccountController,
    KeyController,
    KeyStateController,
    AdapterController,
    AdapterVersionController,
    AdapterImportController,
    AdapterSettingsController,
    ShareController,
    AliasController,
    RouteController,
    SharedRouteController,
    ExplainController,
    list_shared_routes,
    PoolController,
    PoolAdapterController,
    PoolKeyController,
    ProviderKeyController,
    ReplicaController,
    ProjectLimitController,
    OrganizationLimitController,
    RateLimitController,
    ProjectSpendLimitController,
    OrganizationSpendLimitController,
    ProjectSpendAlertController,
    OrganizationSpendAlertController,
    WebhookController,
    BatchController,
    FileController,
    UsageController,
    CostController,
    PriceController,
    PriceClassController,
    PeriodController,
    InvoiceController,
    CreditController,
    AdjustmentController,
    ExperimentController,
    ExperimentExportController,
    ExperimentLifeController,
    ExperimentResultController,
    PreviewController,
    forget_experiment_unit,
    FeedbackMetricController,
    LayerController,
    HoldoutController,
    UserController,
    UserLoginController,
    UserPasskeyController,
    AdminKeyController,
    AuditLogController,
    ExportController,
    ProjectExportController,
    DeliveryController,
    StripeCustomerController,
    ReconciliationController,
    find_key,
    list_all_adapters,
    verify_adapters,
    HostController,
    create_host_token,
    list_project_models,
    status,
    list_engines,
    RequestController,
    ProjectRequestController,
    RefusalController,
    ProjectRefusalController,
    TrafficController,
    ProjectTrafficController,
    list_active_alerts,
    search,
    watch_live,
    get_request_content,
    get_request_response,
    get_conversation_content,
)

_OPEN_HANDLERS = (has_login, log_in, begin_passkey_login, log_in_by_passkey, join_host)
"""Routes without a login or key, whose handlers identify the caller themselves."""


def admin_routers(services: AdminServices) -> list[Router]:
    """Return every route of the admin API, to be registered on the application.

    Raises UndeclaredRoute: when a route has no declaration.
    """
    common: dict[str, Any] = {"request_max_body_size": services.max_body_bytes, "tags": ["admin"]}
    dependencies = {"services": Provide(lambda: services, sync_to_thread=False)}
    guarded = common | {
        "guards": [admin_guard(services)],
        "dependencies": dependencies | {"caller": Provide(_caller, sync_to_thread=False)},
    }
    return [
        check_routes(OwnRouter(PATH, route_handlers=_HANDLERS, **guarded)),
        check_routes(OwnRouter(LOGIN_PATH, route_handlers=[LoginController, PasskeyController], **guarded)),
        OwnRouter(LOGIN_PATH, route_handlers=_OPEN_HANDLERS, dependencies=dependencies, **common),
    ]


def _caller(request: Request[Any, Any, Any]) -> Actor:
    actor = request.auth
    assert isinstance(actor, Actor), "the guard ran first"
    return actor

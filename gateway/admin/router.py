"""Puts the admin API's routes behind one guard and gives them their services."""

from __future__ import annotations

from typing import Any

from litestar import Request, Router
from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from gateway.admin.access import admin_guard, check_routes
from gateway.admin.adapter_imports import AdapterImportController
from gateway.admin.adapter_settings import AdapterSettingsController
from gateway.admin.adapter_versions import AdapterVersionController
from gateway.admin.adapters import AdapterController, list_all_adapters, verify_adapters
from gateway.admin.adjustments import AdjustmentController
from gateway.admin.admin_keys import AdminKeyController
from gateway.admin.alerts import list_active_alerts
from gateway.admin.aliases import AliasController
from gateway.admin.audit_logs import AuditLogController
from gateway.admin.costs import CostController
from gateway.admin.credits import CreditController
from gateway.admin.deliveries import DeliveryController
from gateway.admin.engines import list_engines
from gateway.admin.exports import ExportController, ProjectExportController
from gateway.admin.invoices import InvoiceController
from gateway.admin.key_states import KeyStateController
from gateway.admin.keys import KeyController, find_key
from gateway.admin.limits import OrganizationLimitController, ProjectLimitController
from gateway.admin.live import watch_live
from gateway.admin.logins import LoginController, UserLoginController, log_in
from gateway.admin.members import MemberController
from gateway.admin.organization import OrganizationController
from gateway.admin.periods import PeriodController
from gateway.admin.price_classes import PriceClassController
from gateway.admin.prices import PriceController
from gateway.admin.projects import ProjectController
from gateway.admin.rate_limits import RateLimitController
from gateway.admin.reconciliation import ReconciliationController
from gateway.admin.refusals import ProjectRefusalController, RefusalController
from gateway.admin.request_contents import get_request_content
from gateway.admin.requests import ProjectRequestController, RequestController
from gateway.admin.search import search
from gateway.admin.service_accounts import ServiceAccountController
from gateway.admin.services import AdminServices
from gateway.admin.shares import ShareController
from gateway.admin.spend_alerts import OrganizationSpendAlertController, ProjectSpendAlertController
from gateway.admin.spend_limits import OrganizationSpendLimitController, ProjectSpendLimitController
from gateway.admin.status import status
from gateway.admin.stripe_customers import StripeCustomerController
from gateway.admin.traffic import ProjectTrafficController, TrafficController
from gateway.admin.usage import UsageController
from gateway.admin.users import UserController
from gateway.admin.webhooks import WebhookController
from gateway.tenancy.actor import Actor

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
    ProjectLimitController,
    OrganizationLimitController,
    RateLimitController,
    ProjectSpendLimitController,
    OrganizationSpendLimitController,
    ProjectSpendAlertController,
    OrganizationSpendAlertController,
    WebhookController,
    UsageController,
    CostController,
    PriceController,
    PriceClassController,
    PeriodController,
    InvoiceController,
    CreditController,
    AdjustmentController,
    UserController,
    UserLoginController,
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
)


def admin_routers(services: AdminServices) -> list[Router]:
    """Every route of the admin API, to be registered on the application. Raises UndeclaredRoute.

    Side by side: Litestar copies a router whole for each one that it is put into.
    """
    services.authenticator.changes.subscribe(services.watchers.changed)
    common: dict[str, Any] = {"request_max_body_size": services.max_body_bytes, "tags": ["admin"]}
    dependencies = {"services": Provide(lambda: services, sync_to_thread=False)}
    guarded = common | {
        "guards": [admin_guard(services)],
        "dependencies": dependencies | {"caller": Provide(_caller, sync_to_thread=False)},
    }
    return [
        check_routes(Router(PATH, route_handlers=_HANDLERS, **guarded)),
        check_routes(Router(LOGIN_PATH, route_handlers=[LoginController], **guarded)),
        Router(LOGIN_PATH, route_handlers=[log_in], dependencies=dependencies, **common),
    ]


def _caller(request: Request[Any, Any, Any]) -> Actor:
    actor = request.auth
    assert isinstance(actor, Actor), "the guard ran first"
    return actor

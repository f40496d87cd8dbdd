"""Gateways, engines and clients of `tests.installation` that tests of the gateway start, imported under one name."""

from __future__ import annotations

from tests.installation.engines import FakeEngine
from tests.installation.live_gateway import BASE, LiveGateway
from tests.installation.tenants import Tenant, make_operator_key, make_tenant

__all__ = ["BASE", "FakeEngine", "LiveGateway", "Tenant", "make_operator_key", "make_tenant"]

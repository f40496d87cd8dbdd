"""A server with the admin API per test, as the admin API's own tests have."""

from __future__ import annotations

from tests.gateway.admin.conftest import acme, operator, server

__all__ = ["acme", "operator", "server"]

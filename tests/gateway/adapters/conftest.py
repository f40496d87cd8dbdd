"""A server with the admin API for each test, as the admin API's own tests have one."""

from __future__ import annotations

from tests.gateway.admin.conftest import acme, operator, server

__all__ = ["acme", "operator", "server"]

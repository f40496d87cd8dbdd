"""The admin API under /v1/organization: projects, their keys and adapters, and what runs. For operators' keys only."""

from gateway.admin.router import admin_routers
from gateway.admin.services import AdminServices

__all__ = ["AdminServices", "admin_routers"]

"""Every view of the dashboard, by the name of its screenshot. {acme} is the id of that project, {request} one of its
requests, {month} the present one."""

VIEWS = {
    "overview": "",
    "overview-of-one": "?project={acme}",
    "adapters": "adapters",
    "adapters-of-one": "adapters?project={acme}",
    "adapter": "adapters/{acme}/support-bot",
    "adapter-version": "adapters/{acme}/support-bot?version=1",
    "adapter-traffic": "adapters/{acme}/support-bot/traffic",
    "adapter-settings": "adapters/{acme}/support-bot/settings",
    "adapter-access": "adapters/{acme}/support-bot/access",
    "adapter-upload": "adapters?add=file",
    "adapter-import": "adapters?add=source&project={acme}",
    "playground": "playground?project={acme}&model=tiny:support-bot&with=tiny",
    "system": "system",
    "status": "system/status",
    "reconciliation": "system/reconciliation",
    "usage": "usage",
    "usage-by-model": "usage?by=model&show=tokens&project={acme}",
    "prices": "usage/prices",
    "periods": "usage/periods",
    "period": "usage/periods/{month}",
    "invoice": "usage/periods/{month}/{acme}",
    "credits": "usage/credits",
    "credits-of-one": "usage/credits?project={acme}",
    "exports": "usage/exports",
    "requests": "requests",
    "requests-failed": "requests?status=error",
    "request": "requests/{request}",
    "tenants": "tenants",
    "tenant": "tenants/{acme}",
    "tenant-keys": "tenants/{acme}/keys",
    "tenant-limits": "tenants/{acme}/limits",
    "tenant-members": "tenants/{acme}/members",
    "tenant-adapters": "tenants/{acme}/adapters",
    "tenant-refusals": "tenants/{acme}/refusals",
    "tenant-settings": "tenants/{acme}/settings",
    "new-tenant": "tenants?new=1",
    "new-limit": "tenants/{acme}/limits?new=1",
    "refusals": "refusals",
    "people": "system/users",
    "operator-keys": "system/admin-keys",
    "organization-limits": "system/limits",
    "webhooks": "system/webhooks",
    "audit": "system/audit",
    "account": "account",
    "not-found": "nothing/here",
}

ONE_OF_EACH_KIND = ("overview", "adapter-version", "adapter-upload", "playground", "usage", "request", "tenant-limits")
"""Charts, a drawer, a form, a conversation, a table with totals, a timeline, gauges."""

OF_THE_GUIDE = (("light", "overview"), ("dark", "adapter-traffic"), ("phone", "tenant"))
"""By mode: README.md shows them, and the playground with answers."""

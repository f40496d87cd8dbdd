"""Every view of the dashboard, by the name of its screenshot. {acme} is the id of that project, {request} one of its
requests, {month} the present one."""

VIEWS = {
    "overview": "",
    "overview-of-one": "?project={acme}",
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
    "account": "account",
    "not-found": "nothing/here",
}

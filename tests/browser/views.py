"""Every view of the dashboard, by the name of its screenshot. {acme} stands for the id of that project."""

VIEWS = {
    "overview": "",
    "overview-of-one": "?project={acme}",
    "system": "system",
    "status": "system/status",
    "account": "account",
    "not-found": "nothing/here",
}

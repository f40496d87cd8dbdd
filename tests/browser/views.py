"""Every view of the dashboard, by the name of its screenshot. {acme} stands for the id of that project."""

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
    "account": "account",
    "not-found": "nothing/here",
}

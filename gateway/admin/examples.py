"""Bodies that show what the admin API's main routes take: for readers of the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.admin.adapters.adapters import AddFromSource
from gateway.admin.adapters.aliases import CreateAlias
from gateway.admin.billing.credits import GrantCredit
from gateway.admin.billing.prices import SetPrices
from gateway.admin.limits.limits import SetLimit
from gateway.admin.limits.webhooks import CreateWebhook
from gateway.admin.organization.keys import CreateKey
from gateway.admin.organization.projects import CreateProject
from gateway.admin.organization.users import CreateUser
from gateway.admin.pools.pool_bodies import CreatePool

MODEL = "smollm2-135m-instruct"
NANOS = 10**9

BODIES: Mapping[type[msgspec.Struct], dict[str, Any]] = {
    AddFromSource: {"name": "support", "source": "hf://my-org/support-adapter", "promote": True},
    CreateAlias: {"name": "support-bot", "adapter": "support", "version": 3},
    CreateKey: {
        "name": "production",
        "scopes": ["inference"],
        "models": [MODEL, f"{MODEL}:support"],
        "ip_allowlist": ["203.0.113.0/24"],
        "expires_at": 1_830_297_600,
    },
    CreatePool: {
        "name": "qwen3-0.6b",
        "model": "Qwen/Qwen3-0.6B",
        "settings": {"max_model_len": 8192},
        "num_replicas": 2,
        "access": "all",
    },
    CreateProject: {"name": "initech"},
    CreateUser: {"email": "ann@example.com", "name": "Ann", "role": "admin"},
    CreateWebhook: {"url": "https://hooks.example.com/lorikeet"},
    GrantCredit: {"amount_nanos": 100 * NANOS, "reason": "paid by card"},
    SetLimit: {"unit": "cost_nanos", "window": "month", "max": 500 * NANOS, "alert_percents": [50, 80, 100]},
    SetPrices: {
        "currency": "usd",
        "entries": [
            {
                "input_nanos_per_million": NANOS * 15 // 100,
                "cached_input_nanos_per_million": NANOS * 75 // 1000,
                "output_nanos_per_million": NANOS * 60 // 100,
            }
        ],
    },
}

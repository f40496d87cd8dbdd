"""Example bodies of the admin API's main routes, for readers of the API's document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.admin.adapters.adapters import AddFromSource
from gateway.admin.adapters.aliases import CreateAlias
from gateway.admin.billing.credits import GrantCredit
from gateway.admin.billing.prices import SetPrices
from gateway.admin.experiments.wire import (
    CreateExperiment,
    CreateFeedbackMetric,
    CreateHoldout,
    CreateLayer,
    DecideExperiment,
    ForgetUnit,
    ModifyExperiment,
)
from gateway.admin.experiments.wire_previews import CalibrateExperiment, PreviewExperiment
from gateway.admin.limits.limits import SetLimit
from gateway.admin.limits.webhooks import CreateWebhook
from gateway.admin.organization.keys import CreateKey
from gateway.admin.organization.projects import CreateProject
from gateway.admin.organization.users import CreateUser
from gateway.admin.pools.pool_bodies import CreatePool
from gateway.admin.routing.wire import CreateRoute

MODEL = "smollm2-135m-instruct"
NANOS = 10**9

BODIES: Mapping[type[msgspec.Struct], dict[str, Any]] = {
    AddFromSource: {"name": "support", "source": "hf://my-org/support-adapter", "promote": True},
    CreateAlias: {"name": "support-bot", "adapter": "support", "version": 3},
    CreateRoute: {
        "name": "support",
        "document": {"root": {"fallback": {"nodes": [{"target": f"{MODEL}:support"}, {"target": MODEL}]}}},
    },
    CreateExperiment: {
        "name": "support-tone",
        "model": "support-bot",
        "unit": {"from": "safety_identifier"},
        "coverage": 2000,
        "arms": [
            {"name": "control", "weight": 5000, "target": {"model": f"{MODEL}:support@2"}},
            {
                "name": "warm",
                "weight": 5000,
                "target": {"model": f"{MODEL}:support@3", "defaults": {"temperature": 0.2}, "mode": "fill"},
            },
        ],
        "metrics": {
            "primary": [{"metric": "thumbs-up", "goal": "increase"}],
            "guardrails": [
                {"metric": "error_rate", "action": "pause"},
                {"metric": "ttft_ms.p95", "margin": 0.1},
            ],
        },
        "analysis": {"alpha": 0.05, "tightest_at": 5000, "outcome_window_seconds": 604_800, "min_days": 7},
    },
    ModifyExperiment: {"coverage": 5000},
    DecideExperiment: {"arm": "warm"},
    PreviewExperiment: {"metric": "completion_tokens", "relative_effect": 0.05},
    CalibrateExperiment: {"metric": "cost_nanos", "past_days": 28},
    CreateFeedbackMetric: {"name": "thumbs-up", "type": "boolean", "goal": "increase"},
    CreateLayer: {"name": "search"},
    CreateHoldout: {"name": "quarter", "size": 500},
    ForgetUnit: {"unit": "ann@example.com"},
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

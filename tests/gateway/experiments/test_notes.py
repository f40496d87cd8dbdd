"""What requests leave in memory is written each second, once, and within bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.db.pool import Database
from gateway.domain.errors import GatewayError, InvalidRequest, LimitReached, Overloaded
from gateway.domain.experiments.assignment import Reason, unit_digest
from gateway.domain.experiments.exposure import Exposure
from gateway.experiments import notes as module
from gateway.experiments.notes import Notes
from tests.gateway.experiments.making import KEY, ArmOf, Made, start_experiment
from tests.gateway.live import Tenant, make_tenant
from tests.gateway.routing.away import database_away

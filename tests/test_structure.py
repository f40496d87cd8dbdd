"""A room is found by its name: bounds on the floor plan, measured from the imports."""

from __future__ import annotations

import pytest

from tests.structure import REPOSITORY, Plan, importers, measure

MAX_LEVELS = 12
MAX_FILES = 20

LIBRARIES = {
    "asyncpg": {"gateway/db", "gateway/postgres", "gateway/bench"},
    "litestar": {
        "gateway/admin",
        "gateway/assembly",
        "gateway/dashboard",
        "gateway/evaluation",
        "gateway/http",
        "gateway/messages",
        "gateway/openai",
        "gateway/reference",
    },
    "uvicorn": {"gateway/assembly", "gateway/http"},
    "llguidance": {"engine/grammar"},
}
"""The rooms that may import each library, by library."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return measure()


def test_rooms_stand_on_few_floors_and_import_downwards_alone(plan: Plan) -> None:
    assert plan.levels <= MAX_LEVELS, plan.chain
    assert plan.mutual == []
    assert plan.arrows_up == []


def test_every_module_of_the_gateway_is_in_a_room(plan: Plan) -> None:
    assert plan.homeless == []


def test_no_folder_has_to_be_scrolled(plan: Plan) -> None:
    assert [each for each in plan.folders if each[0] > MAX_FILES] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_where_it_belongs_alone(library: str) -> None:
    assert importers(REPOSITORY, library) <= LIBRARIES[library]

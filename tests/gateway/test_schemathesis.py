"""Every operation of the document but NEVER, sent what Schemathesis makes of it.

Cases are right and, for every second operation or with --full for all, wrong. No case leads to a fault of the server,
or to a reply that the document does not describe. Gateway and database are the test's own, since operations change what
they can.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky, Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway.conftest import House, open_house
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
NUM_CASES, NUM_CASES_FULL = 100, 100_000
SHARE_OF_INFERENCE = 0.4
"""The share of all cases that inference routes get: four routes with most of the traffic."""

ESSENTIAL = {"messages", "prompt", "input"}
"""Fields of an example that are always sent, so that other fields are reached."""

EMAIL, PASSWORD = "fuzz@example.com", "correct horse battery staple"
NEVER = {
    "suspend_organization": "which shuts everybody out, tests included",
    "watch_live": "whose reply has no end",
}
"""The operations that are not called, with the reasons."""


@pytest.fixture(scope="module")
def own_house(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with open_house(module_dsn, folder, tokens_per_s=20_000) as house:
        yield house


@pytest.fixture(scope="module")
def schema(own_house: House) -> BaseSchema:
    document = httpx.get(f"{own_house.url}/openapi.json", timeout=PATIENCE_S).json()
    del document["components"]["securitySchemes"]  # keys are ours to send, not Schemathesis's to garble
    schema = schemathesis.openapi.from_dict(document)
    schema.validate()
    schema.config.update(base_url=own_house.url)
    rejection = schema.config.checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, "413"]  # a made-up body may be larger than any may be
    return schema


def operations(schema: BaseSchema) -> list[APIOperation]:
    """Return the operations sorted by name, an order that stays when the document grows."""
    found = [result.ok() for result in schema.get_all_operations()]
    return sorted(found, key=name_of)


def can_be_wrong(operation: APIOperation) -> bool:
    """Tell whether an operation has a body or query that can be wrong.

    Ids in a path are any text, so Schemathesis would look long for a wrong one.
    """
    raw = operation.definition.raw
    return "requestBody" in raw or any(each["in"] == "query" for each in raw["parameters"])


def is_right(case: Case) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_positive


def name_of(operation: APIOperation) -> str:
    return str(operation.definition.raw["operationId"])


class Caller:
    """A sender of cases with the right credential for each operation: the tenant's key, the operator's, or a login."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._login: dict[str, str] = {}
        self.num_sent = 0

    def send(self, case: Case) -> None:
        name = name_of(case.operation)
        self._lead_somewhere(case, name)
        reply = case.call(headers=self._headers(case.operation), timeout=PATIENCE_S)
        self.num_sent += 1
        if name == "log_out":
            self._login = {}
        case.validate_response(reply, checks=CHECKS)

    def _lead_somewhere(self, case: Case, name: str) -> None:
        """Replace ids in every second case by those of existing objects."""
        if self.num_sent % 2:
            known = {"project_id": self._house.acme.project_id, "name": self._house.acme.adapter, "model_id": BASE}
            for param in case.path_parameters:
                if param in known and name != "archive_project":
                    case.path_parameters[param] = known[param]
            if isinstance(case.body, dict) and is_inference(case.operation) and is_right(case):
                content = case.operation.definition.raw["requestBody"]["content"]["application/json"]
                case.body |= {name: content["example"][name] for name in ESSENTIAL & set(content["example"])}
                case.body["model"] = BASE

    def _headers(self, operation: APIOperation) -> dict[str, str]:
        security = operation.definition.raw["security"]
        if not security:
            return {}
        if "key" not in security[0]:
            return self._of_login()
        is_admin = "x-permission" in operation.definition.raw
        return {"authorization": f"Bearer {self._house.operator_key if is_admin else self._house.acme.key}"}

    def _of_login(self) -> dict[str, str]:
        if not self._login:
            url, operator = self._house.url, {"authorization": f"Bearer {self._house.operator_key}"}
            user = {"email": EMAIL, "name": "Fuzz", "role": "viewer", "password": PASSWORD}
            httpx.post(f"{url}/v1/organization/users", json=user, headers=operator, timeout=PATIENCE_S)
            reply = httpx.post(f"{url}/admin/v1/login", json={"email": EMAIL, "password": PASSWORD}, timeout=PATIENCE_S)
            if reply.is_success:  # wrong passwords of earlier cases may have locked it for a while
                token = reply.cookies["lorikeet_login"]
                self._login = {"cookie": f"lorikeet_login={token}", "x-csrf-token": reply.json()["csrf_token"]}
        return self._login


def test_no_reply_is_one_that_the_document_does_not_describe(
    own_house: House, schema: BaseSchema, full: bool, record_property: Callable[[str, object], None]
) -> None:
    caller, found = Caller(own_house), operations(schema)
    first = os.environ.get("FIRST_OPERATION", "") if full else ""
    first_seed = int(os.environ.get("FIRST_SEED", "1")) if full else 1
    wrong: list[str] = []
    for number, operation in enumerate(found):
        name = name_of(operation)
        if name in NEVER or name < first:
            continue
        share = num_cases(operation, found, NUM_CASES_FULL if full else NUM_CASES)
        is_asked_wrongly = full or is_inference(operation) or number % 2 == 0
        modes = MODES if can_be_wrong(operation) and is_asked_wrongly else MODES[:1]
        for mode in modes:
            try:
                ask(operation, mode, max(1, share // len(modes)), first_seed, caller.send)
            except (FailureGroup, Flaky) as error:
                wrong.append(f"{name}: {error}")
                print(wrong[-1], flush=True)
        if full:
            print(f"{name}: {caller.num_sent} cases so far", flush=True)
    num_asked = sum(name_of(operation) not in NEVER and name_of(operation) >= first for operation in found)
    left_out = ", ".join(f"{name}, {why}" for name, why in NEVER.items())
    record_property(
        "figure", f"{caller.num_sent} cases of {num_asked} of {len(found)} operations; left out: {left_out}"
    )
    assert wrong == [], "\n".join(wrong)
    assert caller.num_sent >= 0.8 * (NUM_CASES_FULL if full else NUM_CASES) or first


def test_a_stream_is_one_that_the_document_describes(own_house: House, schema: BaseSchema) -> None:
    caller, asked = Caller(own_house), 0
    for operation in operations(schema):
        content = operation.definition.raw["responses"]["200"].get("content", {})
        if is_inference(operation) and "text/event-stream" in content:
            example = operation.definition.raw["requestBody"]["content"]["application/json"]["example"]
            caller.send(operation.Case(body=example | {"model": BASE, "stream": True}))
            asked += 1
    assert asked == 4


def num_cases(operation: APIOperation, found: list[APIOperation], num_all: int) -> int:
    """Return the number of an operation's cases: its share of all, or one for an operation without parameters."""
    inference = [each for each in found if is_inference(each)]
    others = [each for each in found if not is_inference(each) and takes_something(each)]
    if is_inference(operation):
        return int(num_all * SHARE_OF_INFERENCE / len(inference))
    return int(num_all * (1 - SHARE_OF_INFERENCE) / len(others)) if takes_something(operation) else 1


def takes_something(operation: APIOperation) -> bool:
    raw = operation.definition.raw
    return bool(raw["parameters"]) or "requestBody" in raw


def is_inference(operation: APIOperation) -> bool:
    return any(each["name"] == "Idempotency-Key" for each in operation.definition.raw.get("parameters", ()))


def ask(
    operation: APIOperation, mode: GenerationMode, num_cases: int, number: int, send: Callable[[Case], None]
) -> None:
    """Run `num_cases` generated cases of an operation: the same for the same seed, without shrinking failures."""
    strategy: Any = operation.as_strategy(generation_mode=mode)

    @seed(number)
    @settings(
        max_examples=num_cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def each(case: Case) -> None:
        send(case)

    with contextlib.suppress(Unsatisfiable):  # nothing of it can be wrong
        each()


def test_no_operation_is_open_without_a_key(
    own_house: House, schema: BaseSchema, record_property: Callable[[str, object], None]
) -> None:
    caller: Callable[[Case], None]

    def caller(case: Case) -> None:
        assert case.call(headers={}).status_code == 401

    secured = [operation for operation in operations(schema) if operation.definition.raw["security"]]
    for operation in secured:
        ask(operation, GenerationMode.POSITIVE, 1, 1, caller)
    record_property("figure", f"one case of each of {len(secured)} operations")

"""The manifests of `deploy/kubernetes` keep every rule, and each rule finds a manifest that breaks it."""

from __future__ import annotations

import copy
import re
import shlex

import jsonschema
import pytest
import yaml

from deploy.manifests import CHART
from engine.version import VERSION
from gateway.cli.command import build_parser
from tests.deploy.chart.custom import SCHEMAS
from tests.deploy.chart.mutants import MUTANTS, OF_THE_DEMO
from tests.deploy.chart.objects import Object, of_kind, pods, read
from tests.deploy.chart.policy import RULES
from tests.documents import REPOSITORY

SETS = {name: read((REPOSITORY / f"deploy/kubernetes/{name}.yaml").read_text()) for name in ("cpu-demo", "production")}
EXAMPLES = {path.stem: read(path.read_text()) for path in sorted((REPOSITORY / "deploy/chart/examples").glob("*.yaml"))}
OF_PODS = list(RULES)[: list(RULES).index("disks_of_the_node_are_bounded") + 1]
"""The rules that concern pods alone."""


def broken(objects: list[Object], name: str) -> list[str]:
    """Return the objects that break a rule."""
    return list(RULES[name](objects))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("which", SETS)
def test_a_manifest_keeps_the_rule(which: str, name: str) -> None:
    assert broken(SETS[which], name) == []


@pytest.mark.parametrize("name", RULES)
def test_the_rule_finds_a_manifest_that_breaks_it(name: str) -> None:
    objects = copy.deepcopy(SETS["cpu-demo" if name in OF_THE_DEMO else "production"])
    MUTANTS[name](objects)
    assert broken(objects, name)


def test_each_mutant_is_of_a_rule() -> None:
    assert MUTANTS.keys() == RULES.keys()


@pytest.mark.parametrize("name", OF_PODS)
def test_the_example_of_weights_keeps_the_rules_of_pods(name: str) -> None:
    assert broken(EXAMPLES["weights"], name) == []


@pytest.mark.parametrize("which", SETS)
def test_custom_resources_have_the_fields_that_there_are(which: str) -> None:
    for each in of_kind(SETS[which], *SCHEMAS):
        jsonschema.validate(each, SCHEMAS[each["kind"]])


def test_a_field_of_a_custom_resource_that_there_is_not_is_refused() -> None:
    [route] = of_kind(copy.deepcopy(SETS["production"]), "HTTPRoute")
    route["spec"]["rules"][0]["timeout"] = "5s"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(route, SCHEMAS["HTTPRoute"])


@pytest.mark.parametrize("which", SETS)
def test_containers_run_commands_that_there_are(which: str) -> None:
    words = [
        container["args"]
        for pod in pods(SETS[which])
        for container in pod.containers
        if "lorikeet-" in container["image"] and "command" not in container
    ]
    scripts = [
        text
        for pod in pods(SETS[which])
        for container in pod.containers
        if "command" in container
        for text in container.get("args", [])
    ]
    words += [
        shlex.split(each) for text in scripts for each in re.findall(r"^(?:until )?lorikeet ([^|;\n]+)", text, re.M)
    ]
    assert len(words) >= 6
    for each in words:
        build_parser().parse_args(each)


def test_the_chart_has_the_products_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == VERSION


def test_the_cluster_of_ray_has_the_locked_version() -> None:
    locked = (REPOSITORY / "deploy/locks/ray.txt").read_text()
    assert f"\nray=={yaml.safe_load((CHART / 'values.yaml').read_text())['ray']['version']} " in locked

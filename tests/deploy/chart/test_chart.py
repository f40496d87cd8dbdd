"""The chart, rendered by Helm: its sets of values and more give objects that the API takes and the policy allows.

Wrong values are refused.
"""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.manifests import CHART, OUT, SETS
from tests.deploy.chart.custom import SCHEMAS
from tests.deploy.chart.objects import Object, named, of_kind, pods, read
from tests.deploy.chart.policy import RULES
from tests.documents import REPOSITORY

PYTHON = REPOSITORY / "build/chart/bin/python"
VERSIONS = ("1.33", "1.35", "1.37")

Values = dict[str, Any]

GIVEN = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CHART / "values").glob("*.yaml"))}
CPU = GIVEN["production"]["engines"]["cpu"]


def changed(name: str, *removed: str, **values: Any) -> Values:
    """Return a set of values with some changed or removed. A dot in a name leads into a value."""
    made: Values = copy.deepcopy(GIVEN[name])
    for path in removed:
        *outer, last = path.split(".")
        place: Any = made
        for step in outer:
            place = place[int(step) if step.isdigit() else step]
        del place[last]
    return made | values


def engines(**values: Any) -> Values:
    """Return one group of engines of the production set with changed values; None removes a value."""
    return {"cpu": {name: value for name, value in (CPU | values).items() if value is not None}}


def pool(**values: Any) -> list[Values]:
    return [{"name": "qwen3-0.6b", "model": "/models/qwen3-0.6b"} | values]


MORE: dict[str, Values] = {
    "hpa": changed(
        "production", engines=engines(autoscaling={"kind": "hpa", "pool": "qwen3-0.6b", "minPods": 1, "maxPods": 4})
    ),
    "our autoscaler": changed(
        "production", pools=pool(scaling={"min": 0, "max": 3}), engines=engines(autoscaling=None, pods=3)
    ),
    "open": changed(
        "production",
        "database.peers",
        networkPolicy={"enabled": False},
        route={**GIVEN["production"]["route"], "admin": True},
        monitoring={"enabled": False},
    ),
    "two groups": changed(
        "production",
        pools=[*pool(), {"name": "qwen3-8b", "model": "/models/qwen3-8b", "replicas": 2}],
        engines=engines() | {"gpu": GIVEN["gpu"]["engines"]["gpu"] | {"image": {"repository": "lorikeet-engine-cuda"}}},
    ),
    "without a volume of weights": changed(
        "production",
        "weights",
        pools=[
            {"name": "one", "model": "Qwen/Qwen3-0.6B", "replicas": 1},
            {"name": "two", "model": "Qwen/Qwen3-1.7B", "scaling": {"min": 1, "max": 2, "downAfterSeconds": 900}},
        ],
        engines=engines(autoscaling=None, pods=2),
        environmentSecrets=["lorikeet-bucket", "hub"],
    ),
    "stores on a volume": changed(
        "production",
        stores={"claim": {"existing": "shared"}},
        settings={"LORIKEET_LOG_LEVEL": "debug"},
        traces={
            "url": "http://collector.observability:4318/v1/traces",
            "peers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}],
        },
        gateway={"replicas": 3, "nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]},
        serviceAccountName="lorikeet",
    ),
    "images by digest": changed(
        "production",
        image={
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
            "gateway": {"repository": "registry.example.com/lorikeet-gateway", "digest": "sha256:" + "a" * 64},
            "engine": {"repository": "registry.example.com/lorikeet-engine-cpu", "tag": "0.1.0-2"},
        },
    ),
    "at rest": changed(
        "cpu-demo",
        pools=[{"name": "one", "model": "demo", "replicas": 0}],
        engines={"cpu": {**GIVEN["cpu-demo"]["engines"]["cpu"], "pods": 0}},
    ),
    "ray on gpus": changed(
        "ray",
        ray={
            **GIVEN["ray"]["ray"],
            "image": {"repository": "lorikeet-engine-ray-cuda"},
            "workers": {
                "gpu": {
                    "pods": 2,
                    "runtimeClassName": "nvidia",
                    "resources": GIVEN["gpu"]["engines"]["gpu"]["resources"],
                },
                "cpu": {**GIVEN["ray"]["ray"]["workers"]["cpu"], "labels": "zone=east,disk=ssd"},
            },
        },
    ),
}
ALL = GIVEN | MORE
EXEMPT = {"open": {"every_pod_is_closed_both_ways", "routes_cut_no_stream_and_show_no_admin_api"}}
"""The rules that a set of values breaks on purpose, by the set's name."""

REFUSED: dict[str, tuple[Values, str]] = {
    "two autoscalers": (changed("production", pools=pool(scaling={"min": 1, "max": 4})), "has two autoscalers"),
    "a number and pods by the load": (changed("production", pools=pool(replicas=2)), "leave out its replicas"),
    "a number and bounds": (changed("gpu", pools=pool(replicas=2, scaling={"min": 1, "max": 2})), "pools"),
    "no number": (changed("production", engines=engines(autoscaling=None, pods=2)), "set replicas or scaling"),
    "pods and an autoscaler": (changed("production", engines=engines(pods=2)), "engines"),
    "an unknown pool": (
        changed("production", pools=[{"name": "other", "model": "/models/other", "replicas": 1}]),
        "there is no pool 'qwen3-0.6b'",
    ),
    "keda without prometheus": (changed("production", "engines.cpu.autoscaling.prometheus"), "prometheus"),
    "the latest image": (changed("production", image={"gateway": {"tag": "latest"}}), "tag"),
    "a secret as a setting": (changed("production", settings={"LORIKEET_CONTENT_KEY": "AAAA"}), "LORIKEET_CONTENT_KEY"),
    "a collector's key as a setting": (
        changed("production", settings={"LORIKEET_TRACES_HEADERS": "a=b"}),
        "LORIKEET_TRACES_HEADERS",
    ),
    "what is no setting": (changed("production", settings={"PATH": "/"}), "PATH"),
    "an unknown value": (changed("production", replicas=2), "replicas"),
    "memory without a bound": (changed("production", "engines.cpu.resources.limits"), "limits"),
    "plain http": (changed("production", publicUrl="http://llm.example.com"), "publicUrl"),
    "no address": (changed("production", "publicUrl"), "publicUrl: set the https URL"),
    "a database nowhere": (changed("production", "database.peers"), "database.peers"),
    "models nowhere": (changed("production", "weights"), "weights.claim names none"),
    "stores nowhere": (changed("production", "stores"), "stores.claim neither names nor makes"),
    "no engines": (changed("production", "engines", pools=pool(replicas=1)), "name at least one group"),
    "a route without a name": (changed("production", "route.hostnames", route={"enabled": True}), "hostnames"),
}


@pytest.fixture(scope="module", autouse=True)
def _helm() -> None:
    if not PYTHON.exists():
        pytest.skip("Helm is not in build/chart: make long-chart")


def run(*command: str, text: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the chart's environment, with a text as its input."""
    return subprocess.run(
        [PYTHON, *command], input=text, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )


def rendered(values: Values) -> str:
    """Return the manifest of values. Raises AssertionError: when they are refused."""
    done = run("-m", "deploy.manifests", "-", text=json.dumps(values))
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module", params=ALL)
def manifest(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return the name of a set of values, and the manifest that Helm renders of it."""
    return request.param, rendered(ALL[request.param])


def test_the_api_takes_every_object(manifest: tuple[str, str]) -> None:
    name, text = manifest
    nodes = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": each.name}, "spec": each.spec}
        for each in pods(read(text))
        if each.kind == "RayCluster"
    ]
    text += "---\n" + yaml.safe_dump_all(nodes) if nodes else ""
    done = run(str(Path(__file__).parent / "strictly.py"), *VERSIONS, text=text)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and {line for line in lines if not line.startswith("custom: ")} == set(), done.stderr
    customs = {line.removeprefix("custom: ") for line in lines}
    assert customs <= SCHEMAS.keys() and len(read(text)) > 8, name
    for each in of_kind(read(text), *SCHEMAS):
        jsonschema.validate(each, SCHEMAS[each["kind"]])


def test_a_wrong_field_is_found(manifest: tuple[str, str]) -> None:
    objects = read(manifest[1])
    service: Object = named(objects, "Service")
    service["spec"]["prots"] = service["spec"].pop("ports")
    done = run(str(Path(__file__).parent / "strictly.py"), *VERSIONS, text=yaml.safe_dump_all(objects))
    assert len([line for line in done.stdout.splitlines() if "prots" in line]) == len(VERSIONS)


def test_every_rule_is_kept(manifest: tuple[str, str]) -> None:
    name, text = manifest
    objects = read(text)
    found = {rule: broken for rule, check in RULES.items() if (broken := list(check(objects)))}
    assert found.keys() == EXEMPT.get(name, set()), found


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_values_are_refused_by_name(name: str) -> None:
    values, why = REFUSED[name]
    done = run("-m", "deploy.manifests", "-", text=json.dumps(values))
    assert done.returncode != 0 and why in done.stderr, done.stderr[-2000:]


def test_helm_finds_nothing_to_complain_of() -> None:
    script = (
        "import json, sys, helm_python.chart as c;"
        f"print(json.dumps(c.lint({str(CHART)!r}, json.load(sys.stdin), strict=True)))"
    )
    report = json.loads(run("-c", script, text=json.dumps(GIVEN["production"])).stdout.splitlines()[-1])
    assert report["errors"] == [] and [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("name", SETS)
def test_the_manifests_that_are_kept_are_those_of_the_chart(name: str) -> None:
    done = run("-c", f"import deploy.manifests as m; print(m.stored_manifest({name!r}), end='')", text="")
    assert (OUT / f"{name}.yaml").read_text() == done.stdout, "make manifests"


def test_the_production_sets_have_no_database_and_the_demo_has_one() -> None:
    has_one = {name: any(pod.component == "database" for pod in pods(read(rendered(GIVEN[name])))) for name in GIVEN}
    assert has_one == {"cpu-demo": True, "production": False, "gpu": False, "ray": False}

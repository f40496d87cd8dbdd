"""Mutants: for each rule of `tests.deploy.chart.policy` a change of a manifest that breaks the rule."""

from __future__ import annotations

from collections.abc import Callable

from tests.deploy.chart.objects import Object, named, of_kind

Mutant = Callable[[list[Object]], None]

GATEWAY, ENGINE = "lorikeet-gateway", "lorikeet-engine-cpu"


def _template(objects: list[Object], name: str = GATEWAY) -> Object:
    spec: Object = named(objects, "StatefulSet", name)["spec"]["template"]["spec"]
    return spec


def _container(objects: list[Object], name: str = GATEWAY) -> Object:
    found: Object = _template(objects, name)["containers"][0]
    return found


def _policy(objects: list[Object], part: str) -> Object:
    spec: Object = named(objects, "NetworkPolicy", f"lorikeet-{part}")["spec"]
    return spec


def _variable(objects: list[Object], name: str, value: object) -> None:
    _container(objects)["env"].append({"name": name, "value": value})


def _follow(objects: list[Object]) -> None:
    script = named(objects, "Job", "lorikeet-pools")["spec"]["template"]["spec"]["containers"][0]["args"]
    script[0] += "lorikeet pool autoscale qwen3-0.6b --min 1 --max 4\n"


def _open_database(objects: list[Object]) -> None:
    for opening in _policy(objects, "database")["ingress"]:
        opening["from"].append({"podSelector": {}})


MUTANTS: dict[str, Mutant] = {
    "pods_run_without_root": lambda it: _template(it)["securityContext"].update(runAsUser=0),
    "the_system_is_read_only": lambda it: _container(it)["securityContext"].pop("readOnlyRootFilesystem"),
    "no_privilege_is_gained": lambda it: _container(it)["securityContext"].update(allowPrivilegeEscalation=True),
    "all_capabilities_are_dropped": lambda it: _container(it)["securityContext"]["capabilities"].update(
        add=["NET_BIND_SERVICE"]
    ),
    "system_calls_are_filtered": lambda it: _template(it)["securityContext"].pop("seccompProfile"),
    "nothing_of_the_node_is_used": lambda it: _template(it)["volumes"].append({"name": "node", "hostPath": {}}),
    "no_token_of_the_api_is_mounted": lambda it: _template(it).pop("automountServiceAccountToken"),
    "services_become_no_variables": lambda it: _template(it).pop("enableServiceLinks"),
    "images_have_a_version": lambda it: _container(it).update(image="lorikeet-gateway:latest"),
    "memory_and_processors_are_asked_for_and_memory_is_bounded": lambda it: _container(it)["resources"].pop("limits"),
    "disks_of_the_node_are_bounded": lambda it: _template(it)["volumes"].append({"name": "more", "emptyDir": {}}),
    "journals_and_keys_outlive_their_pods": lambda it: named(it, "StatefulSet", GATEWAY)["spec"].pop(
        "volumeClaimTemplates"
    ),
    "what_runs_for_long_has_three_probes": lambda it: _container(it, ENGINE).pop("livenessProbe"),
    "gateways_are_asked_on_the_port_of_metrics": lambda it: _container(it)["readinessProbe"]["httpGet"].update(
        path="/health/live"
    ),
    "there_is_time_for_lame_duck_and_drain_and_15_seconds_more": lambda it: _template(it).update(
        terminationGracePeriodSeconds=30
    ),
    "engines_end_what_they_run_before_they_stop": lambda it: _container(it, ENGINE).update(args=["agent"]),
    "jobs_come_to_an_end": lambda it: of_kind(it, "Job")[0]["spec"].pop("activeDeadlineSeconds"),
    "the_schema_comes_before_the_code": lambda it: named(it, "Job", "lorikeet-migrate")["metadata"].pop("annotations"),
    "one_pod_at_a_time_is_taken_away": lambda it: named(it, "PodDisruptionBudget", GATEWAY)["spec"].update(
        maxUnavailable=0
    ),
    "pods_are_spread": lambda it: _template(it).pop("topologySpreadConstraints"),
    "variables_are_settings": lambda it: _variable(it, "LORIKEET_DRAIN_MINUTES", "1"),
    "secrets_are_files": lambda it: _variable(it, "LORIKEET_CONTENT_KEY", "AAAA"),
    "no_secret_is_in_the_manifest": lambda it: it.append({"kind": "Secret", "metadata": {"name": "passwords"}}),
    "each_part_has_its_own_secrets_alone": lambda it: next(
        each for each in _template(it)["volumes"] if each["name"] == "secret"
    )["secret"]["items"].append({"key": "admin-key", "path": "admin-key"}),
    "every_pod_is_closed_both_ways": lambda it: _policy(it, "jobs").update(policyTypes=["Egress"]),
    "gateways_alone_reach_engines": lambda it: _policy(it, "engine")["ingress"][0]["from"].append(
        {"namespaceSelector": {}}
    ),
    "the_database_is_for_gateways_agents_and_the_migration": _open_database,
    "clients_and_prometheus_have_a_port_each": lambda it: _policy(it, "gateway")["ingress"][0]["ports"].append(
        {"port": 9464}
    ),
    "clouds_own_addresses_are_out_of_reach": lambda it: _policy(it, "gateway")["egress"].append(
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}
    ),
    "routes_cut_no_stream_and_show_no_admin_api": lambda it: named(it, "HTTPRoute")["spec"]["rules"][-1].pop(
        "timeouts"
    ),
    "services_and_monitors_find_pods": lambda it: named(it, "Service", "lorikeet")["spec"]["selector"].update(
        {"app.kubernetes.io/component": "gate"}
    ),
    "one_autoscaler_has_a_pool": _follow,
}

OF_THE_DEMO = {"the_database_is_for_gateways_agents_and_the_migration"}
"""Mutants of the manifest that has a database."""

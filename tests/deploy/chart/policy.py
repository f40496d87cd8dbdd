"""The rules for every manifest of the chart, each of which names what breaks it. Each rule has a mutant in
`tests.deploy.chart.mutants` that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from gateway.settings import settings_table
from tests.deploy.chart.objects import LONG_RUNNING, Object, Pod, named, of_kind, pods, selects, variables

Rule = Callable[[list[Object]], Iterable[str]]

RULES: dict[str, Rule] = {}

VOLUMES = {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
"""The kinds of volumes that the chart needs and pod security "restricted" allows."""
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|KEY|URL")
NOT_SECRET = {"LORIKEET_PUBLIC_URL", "LORIKEET_TRACES_URL", "LORIKEET_URL"}
HEALTH = {"startupProbe": "/health/startup", "livenessProbe": "/health/live", "readinessProbe": "/health/ready"}
SECRETS = {
    "gateway": {"database-url", "content-key"},
    "engine": {"database-url"},
    "ray": {"database-url"},
    "migrate": {"database-url", "database-owner-url", "admin-key", "admin-password"},
    "pools": {"admin-key"},
    "database": {"database-owner-password", "database-runtime-password"},
}
"""The secrets that each part may read."""


def rule(check: Rule) -> Rule:
    """Register a rule, and return it unchanged."""
    RULES[check.__name__] = check
    return check


def part_of(pod: Pod) -> str:
    """Return the name of a pod's part; pods of all groups of engines have the part `engine`."""
    return "engine" if pod.component.startswith("engine-") else pod.component


def containers(objects: Iterable[Object]) -> Iterator[tuple[str, Object, Pod]]:
    """Give all containers, each with a name for people and its pod."""
    for pod in pods(objects):
        for container in pod.containers:
            yield f"{pod.name}/{container['name']}", container, pod


# pod security "restricted", and more


@rule
def pods_run_without_root(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        context = pod.spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) < 1000:
            yield pod.name
    for name, container, _ in containers(objects):
        if {"runAsNonRoot", "runAsUser", "privileged"} & container.get("securityContext", {}).keys():
            yield name


@rule
def the_system_is_read_only(objects: list[Object]) -> Iterable[str]:
    for name, container, _ in containers(objects):
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield name


@rule
def no_privilege_is_gained(objects: list[Object]) -> Iterable[str]:
    for name, container, _ in containers(objects):
        if container.get("securityContext", {}).get("allowPrivilegeEscalation") is not False:
            yield name


@rule
def all_capabilities_are_dropped(objects: list[Object]) -> Iterable[str]:
    for name, container, _ in containers(objects):
        if container.get("securityContext", {}).get("capabilities") != {"drop": ["ALL"]}:
            yield name


@rule
def system_calls_are_filtered(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        if pod.spec.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield pod.name


@rule
def nothing_of_the_node_is_used(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        if {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys():
            yield pod.name
        for volume in pod.spec.get("volumes", []):
            if not (volume.keys() - {"name"}) <= VOLUMES:
                yield f"{pod.name}: volume {volume['name']}"
    for name, container, _ in containers(objects):
        if any("hostPort" in port for port in container.get("ports", [])):
            yield name


@rule
def no_token_of_the_api_is_mounted(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield pod.name


@rule
def services_become_no_variables(objects: list[Object]) -> Iterable[str]:
    """Yield the names of pods into which Kubernetes puts variables of services.

    Variables of a service named lorikeet would begin with LORIKEET_, and stop every process as unknown settings.
    """
    for pod in pods(objects):
        if pod.spec.get("enableServiceLinks") is not False:
            yield pod.name


# images, memory, disks


@rule
def images_have_a_version(objects: list[Object]) -> Iterable[str]:
    for name, container, _ in containers(objects):
        if not re.search(r"(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"]):
            yield f"{name}: {container['image']}"


@rule
def memory_and_processors_are_asked_for_and_memory_is_bounded(objects: list[Object]) -> Iterable[str]:
    for name, container, _ in containers(objects):
        resources = container.get("resources", {})
        if not ({"cpu", "memory"} <= resources.get("requests", {}).keys() and "memory" in resources.get("limits", {})):
            yield name


@rule
def disks_of_the_node_are_bounded(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        for volume in pod.spec.get("volumes", []):
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{pod.name}: volume {volume['name']}"


@rule
def journals_and_keys_outlive_their_pods(objects: list[Object]) -> Iterable[str]:
    for each in of_kind(objects, "StatefulSet"):
        claims = [claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])]
        kept = each["spec"].get("persistentVolumeClaimRetentionPolicy", {})
        mounts = [
            mount["name"]
            for container in each["spec"]["template"]["spec"]["containers"]
            for mount in container["volumeMounts"]
            if mount["mountPath"] == "/data"
        ]
        if not mounts or not set(mounts) <= set(claims) or "Delete" in kept.values():
            yield each["metadata"]["name"]


# starts and ends


@rule
def what_runs_for_long_has_three_probes(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        if pod.kind in LONG_RUNNING:
            for container in pod.spec["containers"]:
                if not HEALTH.keys() <= container.keys():
                    yield f"{pod.name}/{container['name']}"


@rule
def gateways_are_asked_on_the_port_of_metrics(objects: list[Object]) -> Iterable[str]:
    for name, container, pod in containers(objects):
        if pod.component == "gateway" and container["name"] == "gateway":
            for probe, path in HEALTH.items():
                if container.get(probe, {}).get("httpGet") != {"path": path, "port": "metrics"}:
                    yield f"{name}: {probe}"


@rule
def there_is_time_for_lame_duck_and_drain_and_15_seconds_more(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            found = variables(container)
            waits = ("LORIKEET_LAME_DUCK_SECONDS", "LORIKEET_DRAIN_SECONDS", "LORIKEET_REPLICA_DRAIN_SECONDS")
            given_s = [int(found[name]) for name in waits if name in found]
            if given_s and pod.spec.get("terminationGracePeriodSeconds") != sum(given_s) + 15:
                yield pod.name
            if part_of(pod) in ("gateway", "engine") and not given_s:
                yield f"{pod.name}: says not how long it drains"


@rule
def engines_end_what_they_run_before_they_stop(objects: list[Object]) -> Iterable[str]:
    for name, container, pod in containers(objects):
        if part_of(pod) == "engine" and container["name"] == "agent" and "--drain-engines" not in container["args"]:
            yield name


@rule
def jobs_come_to_an_end(objects: list[Object]) -> Iterable[str]:
    for each in of_kind(objects, "Job"):
        spec = each["spec"]
        if not {"backoffLimit", "activeDeadlineSeconds"} <= spec.keys():
            yield each["metadata"]["name"]


@rule
def the_schema_comes_before_the_code(objects: list[Object]) -> Iterable[str]:
    bundled = any(pod.component == "database" for pod in pods(objects))
    for each in of_kind(objects, "Job"):
        hooks = each["metadata"].get("annotations", {}).get("helm.sh/hook", "").split(",")
        is_migration = each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == "migrate"
        if is_migration and not bundled and "pre-upgrade" not in hooks:
            yield each["metadata"]["name"]


@rule
def one_pod_at_a_time_is_taken_away(objects: list[Object]) -> Iterable[str]:
    budgets = of_kind(objects, "PodDisruptionBudget")
    for each in budgets:
        if each["spec"].get("maxUnavailable") != 1:
            yield each["metadata"]["name"]
    for pod in pods(objects):
        covered = sum(selects(each["spec"]["selector"], pod.labels) for each in budgets)
        if pod.kind in ("StatefulSet", "Deployment") and covered != 1:
            yield f"{pod.name}: {covered} budgets"


@rule
def pods_are_spread(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        if part_of(pod) not in ("gateway", "engine"):
            continue
        keys = [
            each["topologyKey"]
            for each in pod.spec.get("topologySpreadConstraints", [])
            if selects(each["labelSelector"], pod.labels)
        ]
        if sorted(keys) != ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]:
            yield pod.name


# settings and secrets


@rule
def variables_are_settings(objects: list[Object]) -> Iterable[str]:
    known = {row.name for row in settings_table()} | {"LORIKEET_URL"}
    for name, container, _ in containers(objects):
        ours = {each["name"] for each in container.get("env", [])}
        ours = {each for each in ours if each.startswith(("LORIKEET_", "DATABASE_"))}
        for each in sorted({each.removesuffix("_FILE") for each in ours} - known):
            yield f"{name}: {each}"


@rule
def secrets_are_files(objects: list[Object]) -> Iterable[str]:
    for name, container, _ in containers(objects):
        for each in container.get("env", []):
            is_secret = SECRET.search(each["name"]) and each["name"] not in NOT_SECRET
            if "secretKeyRef" in each.get("valueFrom", {}) or (is_secret and not each["name"].endswith("_FILE")):
                yield f"{name}: {each['name']}"


@rule
def no_secret_is_in_the_manifest(objects: list[Object]) -> Iterable[str]:
    for each in of_kind(objects, "Secret"):
        yield each["metadata"]["name"]


@rule
def each_part_has_its_own_secrets_alone(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        for volume in pod.spec.get("volumes", []):
            if "secret" in volume:
                entries = {item["key"] for item in volume["secret"].get("items", [])}
                if not entries or entries - SECRETS[part_of(pod)] - {"ca.crt"}:
                    yield f"{pod.name}: {sorted(entries)}"


# the network


def _policies(objects: list[Object], labels: Mapping[str, str], way: str) -> list[Object]:
    """Return the policies that close pods with these labels in one way, Ingress or Egress."""
    found = of_kind(objects, "NetworkPolicy")
    return [
        each
        for each in found
        if selects(each["spec"]["podSelector"], labels) and way in each["spec"].get("policyTypes", [])
    ]


def _openings(objects: list[Object], pod: Pod) -> Iterator[Object]:
    """Yield the network policy rules that allow others to reach a pod."""
    for policy in _policies(objects, pod.labels, "Ingress"):
        yield from policy["spec"].get("ingress") or []


def _callers(objects: list[Object], opening: Object) -> set[str]:
    """Return the parts of the release that a rule lets in, and `others` where it lets in more."""
    found = set()
    for peer in opening.get("from") or [{"ipBlock": {}}]:
        if peer.keys() != {"podSelector"} or not peer["podSelector"]:
            found.add("others")
            continue
        found |= {part_of(pod) for pod in pods(objects) if selects(peer["podSelector"], pod.labels)}
    return found


@rule
def every_pod_is_closed_both_ways(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        for way in ("Ingress", "Egress"):
            if not _policies(objects, pod.labels, way):
                yield f"{pod.name}: {way}"


@rule
def gateways_alone_reach_engines(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        if part_of(pod) in ("engine", "ray"):
            allowed = {"gateway"} if part_of(pod) == "engine" else {"gateway", "ray"}
            for opening in _openings(objects, pod):
                if _callers(objects, opening) - allowed:
                    yield pod.name


@rule
def the_database_is_for_gateways_agents_and_the_migration(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        if pod.component == "database":
            for opening in _openings(objects, pod):
                if _callers(objects, opening) - {"gateway", "engine", "migrate"}:
                    yield pod.name


@rule
def clients_and_prometheus_have_a_port_each(objects: list[Object]) -> Iterable[str]:
    for pod in pods(objects):
        if pod.component == "gateway":
            for opening in _openings(objects, pod):
                ports = [each.get("port") for each in opening.get("ports", [])]
                if ports not in ([8080], [9464]) or not opening.get("from"):
                    yield f"{pod.name}: {ports}"


@rule
def clouds_own_addresses_are_out_of_reach(objects: list[Object]) -> Iterable[str]:
    for policy in of_kind(objects, "NetworkPolicy"):
        for way in policy["spec"].get("egress") or []:
            for peer in way.get("to", []):
                block = peer.get("ipBlock", {})
                if block.get("cidr") == "0.0.0.0/0" and "169.254.0.0/16" not in block.get("except", []):
                    yield policy["metadata"]["name"]


@rule
def routes_cut_no_stream_and_show_no_admin_api(objects: list[Object]) -> Iterable[str]:
    for route in of_kind(objects, "HTTPRoute"):
        closed = set()
        for each in route["spec"]["rules"]:
            paths = {match["path"]["value"] for match in each["matches"]}
            if "backendRefs" in each and each.get("timeouts") != {"request": "0s", "backendRequest": "0s"}:
                yield f"{route['metadata']['name']}: {sorted(paths)}"
            if "backendRefs" not in each:
                closed |= paths
        if not {"/admin", "/v1/organization"} <= closed:
            yield f"{route['metadata']['name']}: admin"


# names that have to agree


@rule
def services_and_monitors_find_pods(objects: list[Object]) -> Iterable[str]:
    templates = list(pods(objects))
    for each in of_kind(objects, "Service"):
        if not any(selects({"matchLabels": each["spec"]["selector"]}, pod.labels) for pod in templates):
            yield each["metadata"]["name"]
    for each in of_kind(objects, "ServiceMonitor"):
        ports = {
            (service["metadata"]["labels"].get(each["spec"]["jobLabel"]), port["name"])
            for service in of_kind(objects, "Service")
            if selects(each["spec"]["selector"], service["metadata"]["labels"])
            for port in service["spec"]["ports"]
        }
        if ("lorikeet", each["spec"]["endpoints"][0]["port"]) not in ports:
            yield each["metadata"]["name"]
    for each in of_kind(objects, "StatefulSet"):
        try:
            named(objects, "Service", each["spec"]["serviceName"])
        except LookupError:
            yield each["metadata"]["name"]


@rule
def one_autoscaler_has_a_pool(objects: list[Object]) -> Iterable[str]:
    scripts = [str(container.get("args")) for _, container, pod in containers(objects) if pod.component == "pools"]
    for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = named(objects, "StatefulSet", each["spec"]["scaleTargetRef"]["name"])
        if "replicas" in target["spec"]:
            yield f"{target['metadata']['name']}: a number of pods"
        followed = set(re.findall(r"model_name=?\"?'?: ?'?([\w.-]+)|model_name=\"([\w.-]+)\"", str(each)))
        for name in {pool for pair in followed for pool in pair if pool}:
            if any(f"autoscale {name} --min" in script for script in scripts):
                yield name

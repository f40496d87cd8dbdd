"""The services of the compose file and the pods of the chart's demo, started as processes here, serve.

They start in their order and with their variables.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from gateway.db.roles import RUNTIME_ROLE
from tests.deploy.chart.objects import Object, named, read
from tests.deploy.services import LORIKEET, Places, Service, of_compose, of_container, write_secrets
from tests.deploy.test_containers import SERVICES
from tests.documents import REPOSITORY
from tests.faults.pools.tiny_bases import make_base
from tests.installation.processes import ChildProcess
from tests.installation.tenants import make_key
from tests.installation.waiting import wait_ready
from tests.patience import PATIENCE_S

NAME = "tiny"
DEMO = REPOSITORY / "deploy/kubernetes/cpu-demo.yaml"


def of_gateways(dsn: str) -> str:
    """Return the connection string with the database role of gateways."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{RUNTIME_ROLE}:{parts.password}@{parts.hostname or ''}"))


class Site:
    """The shared folders and addresses of an installation's services, and their running processes."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.dsn = dsn
        self.model = make_base(folder / "model", seed=1)
        self.places = Places(folder, folder / "secrets")
        self._folder = folder
        self._processes: list[ChildProcess] = []
        key = subprocess.run([*LORIKEET, "admin-key", "generate"], capture_output=True, text=True, check=True)
        secrets = {
            "database-url": of_gateways(dsn),
            "database-owner-url": dsn,
            "content-key": base64.b64encode(os.urandom(32)).decode(),
            "admin-key": key.stdout.strip(),
            "admin-password": "correct horse battery",
        }
        write_secrets(self.places.secrets, secrets, secrets)

    def once(self, service: Service, pod: str = "shared") -> None:
        """Run a service to its end.

        pod: the pod in which the service runs, with its own network.

        Raises AssertionError: when it fails.
        """
        command = [*LORIKEET, *service.command]
        environ = self.places.environ(service, pod)
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    def start(self, service: Service, pod: str = "shared") -> dict[str, str]:
        """Start a service that keeps running; return its variables.

        pod: as for `once`.
        """
        environ = self.places.environ(service, pod)
        log = self._folder / f"{service.command[0]}-{len(self._processes)}.log"
        process = ChildProcess([*LORIKEET, *service.command], log=log, env=environ)
        process.start()
        self._processes.append(process)
        return environ

    def wait_ready(self, environ: dict[str, str]) -> str:
        """Wait until a gateway is ready, and return its address."""
        process = self._processes[-1]
        wait_ready(f"http://{environ['LORIKEET_METRICS_LISTEN']}", check=process.check, log=self.output)
        return f"http://127.0.0.1:{environ['LORIKEET_PORT']}"

    def output(self) -> str:
        return "\n".join(each.output()[-2000:] for each in self._processes)

    def end(self) -> list[int]:
        """Stop all services in the reverse order of their start; return their exit codes."""
        codes = [process.terminate() for process in reversed(self._processes)]
        self._processes.clear()
        return codes

    def close(self) -> None:
        for process in self._processes:
            if process.popen is not None:
                process.terminate()


@pytest.fixture
def site(empty_dsn: str) -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="lk-"))  # a short path, for the sockets below it
    site = Site(folder, empty_dsn)
    yield site
    site.close()
    shutil.rmtree(folder)


def run_script(script: str, environ: dict[str, str]) -> None:
    """Run a shell script in an environment.

    Raises CalledProcessError: when it ends with an error.
    """
    subprocess.run(["sh", "-eu", "-c", script], env=environ, timeout=PATIENCE_S, check=True)


async def answers(url: str, key: str) -> None:
    """Check that a tenant's request is answered."""
    body = {"model": NAME, "prompt": "hello", "max_tokens": 3, "temperature": 0}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        reply = await client.post(f"{url}/v1/completions", headers={"authorization": f"Bearer {key}"}, json=body)
    assert (reply.status_code, reply.json()["usage"]["completion_tokens"]) == (200, 3), reply.text


async def test_the_services_of_the_compose_file_serve(site: Site) -> None:
    environ = {
        "LORIKEET_PUBLIC_URL": "https://llm.example.com",
        "LORIKEET_MODEL": str(site.model),
        "LORIKEET_MODEL_NAME": NAME,
    }
    service = {name: of_compose(SERVICES, name, environ) for name in SERVICES if "lorikeet" in SERVICES[name]["image"]}
    site.once(service["migrate"])
    site.once(service["prepare"])
    site.start(service["engine"])
    key = await make_key(site.dsn, "acme")
    for name in ("gateway1", "gateway2"):
        await answers(site.wait_ready(site.start(service[name])), key.secret)
    assert site.end() == [0, 0, 0]


def container(objects: list[Object], kind: str, name: str, group: str = "containers") -> Object:
    """Return the first container of the pods that an object makes, with the test's model in place of the demo's.

    group: the list of containers, such as initContainers.
    """
    found: Object = named(objects, kind, name)["spec"]["template"]["spec"][group][0]
    return found


async def test_the_pods_of_the_charts_demo_serve(site: Site, full: bool) -> None:
    if not full:
        pytest.skip("make long-chart")
    text = DEMO.read_text()
    name = "smollm2-135m-instruct"
    assert text.count("value: demo\n") + text.count('value: "demo"\n') == 3, "the job, the preparation and the gateway"
    for quoted in ("value: demo\n", 'value: "demo"\n'):
        text = text.replace(quoted, f"value: {site.model}\n")
    objects = read(text.replace(name, NAME))
    site.once(of_container(container(objects, "Job", "lorikeet-migrate-1")), "migrate")
    site.start(of_container(container(objects, "StatefulSet", "lorikeet-engine-cpu")), "engine")
    site.once(of_container(container(objects, "StatefulSet", "lorikeet-gateway", "initContainers")), "gateway")
    environ = site.start(of_container(container(objects, "StatefulSet", "lorikeet-gateway")), "gateway")
    url = site.wait_ready(environ)
    await answers(url, (await make_key(site.dsn, "acme")).secret)
    assert (site.places.folder / "engine/lorikeet/agent.ready").exists()

    pools = container(objects, "Job", "lorikeet-pools")
    script = pools["args"][0]
    variables = site.places.environ(of_container(pools), "pools") | {"LORIKEET_URL": url}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run_script(script, variables)
    assert site.end() == [0, 0]

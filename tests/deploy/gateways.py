"""Gateways as process managers run them: `lorikeet gateway` with a port of its own, or on a socket that outlives it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from gateway.settings import Settings
from tests.gateway.live import BASE
from tests.installation.processes import ChildProcess, free_port, parent
from tests.installation.waiting import wait_ready, wait_until

COMMAND = (sys.executable, "-m", "gateway.cli", "gateway")
LAME_DUCK_S = 3.0
DRAIN_S = 60.0


def environ_of(settings: Settings, dsn: str, lame_duck_s: float = LAME_DUCK_S) -> dict[str, str]:
    """Return the variables of a gateway behind a proxy of this machine.

    lame_duck_s: the seconds in which a gateway that stops still takes requests, so that balancers can notice.
    """
    return {
        "DATABASE_URL": dsn,
        "LORIKEET_DATA_DIR": str(settings.data_dir),
        "LORIKEET_MODEL": settings.model,
        "LORIKEET_MODEL_NAME": BASE,
        "LORIKEET_LAME_DUCK_SECONDS": str(lame_duck_s),
        "LORIKEET_DRAIN_SECONDS": str(DRAIN_S),
        "LORIKEET_TRUSTED_PROXIES": "127.0.0.1/32",
        "LORIKEET_MAX_CONNECTIONS_PER_ADDRESS": "0",
        "PYTHONDONTWRITEBYTECODE": "",  # a start would compile all modules again
    }


def inherited() -> dict[str, str]:
    """Return this process's environment without Lorikeet's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LORIKEET_")}


class OwnPort:
    """A gateway that listens on a port of its own, which is closed while the gateway does not run.

    variables: further variables of its environment.
    """

    def __init__(
        self,
        settings: Settings,
        dsn: str,
        number: int,
        command: tuple[str, ...] = COMMAND,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environ = (
            inherited()
            | environ_of(settings, dsn)
            | {"LORIKEET_PORT": str(self.port), "LORIKEET_METRICS_LISTEN": "off"}
            | dict(variables)
        )
        log = settings.data_dir / f"own-port-{number}.log"
        self._process = ChildProcess(command, log=log, env=self._environ)

    def change(self, variables: Mapping[str, str]) -> None:
        """Set variables of the environment for the gateway's next start."""
        self._environ.update(variables)

    def start(self) -> None:
        self._process.start()

    def wait_ready(self) -> None:
        wait_ready(self.url, check=self._process.check, log=self._process.output)

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        return self._process.terminate()

    def restart(self) -> None:
        """Stop the gateway gracefully, and start another one on the same port.

        Raises AssertionError: when the old gateway does not end well.
        """
        code = self.terminate()
        assert code == 0, self._process.output()[-2000:]
        self.start()
        self.wait_ready()

    def close(self) -> None:
        self._process.kill()


class Activated:
    """Gateways that share a socket which outlives each of them, as systemd holds it.

    `systemd-socket-activate` opens the socket, and a shell for each gateway starts the next one when a gateway has
    ended.
    """

    def __init__(self, settings: Settings, dsn: str, num_gateways: int, lame_duck_s: float) -> None:
        """Prepare the gateways.

        lame_duck_s: longer than any stream, so that each client learns by `connection: close` that its connection
        ends: no balancer stands between.
        """
        self.port = free_port()
        self._operator_urls = [f"127.0.0.1:{free_port()}" for _ in range(num_gateways)]
        self._pids = [settings.data_dir / f"activated-{number}.pid" for number in range(num_gateways)]
        activate = shutil.which("systemd-socket-activate")
        assert activate is not None
        loops = []
        for address, path in zip(self._operator_urls, self._pids, strict=True):
            gateway = f"echo $$ >{path}; LORIKEET_METRICS_LISTEN={address} exec {shlex.join(COMMAND)} --fd 3"
            loops.append(f"( while :; do sh -c {shlex.quote(gateway)}; echo ended $?; done ) &")
        variables = [
            f"--setenv={name}={value}" for name, value in (inherited() | environ_of(settings, dsn, lame_duck_s)).items()
        ]
        script = "\n".join([*loops, "wait"])
        command = [activate, f"--listen=127.0.0.1:{self.port}", *variables, "/bin/sh", "-c", script]
        self._process = ChildProcess(command, log=settings.data_dir / "activated.log")

    def start(self) -> None:
        """Open the socket and connect to it, which starts the gateways."""
        self._process.start()
        wait_ready(f"http://127.0.0.1:{self.port}", check=self._process.check, log=self._process.output)
        for number in range(len(self._pids)):
            self._wait_ready(number)

    def restart(self, number: int) -> None:
        """Stop one of the gateways gracefully, and return once its shell has started another one that is ready.

        Raises AssertionError: when a gateway has not ended well.
        """
        before = self._pids[number].read_text()
        os.kill(int(before), signal.SIGTERM)
        wait_until(lambda: self._pids[number].read_text() not in ("", before), self._process.output)
        self._wait_ready(number)
        output = self._process.output()
        assert set(re.findall(r"^ended (\d+)$", output, re.MULTILINE)) == {"0"}, output[-2000:]

    def terminate(self) -> None:
        """Stop the shells, so that no gateway is started any more, and then the gateways."""
        gateways = [int(path.read_text()) for path in self._pids]
        os.kill(self._process.pid, signal.SIGKILL)
        for pid in gateways:
            os.kill(parent(pid), signal.SIGKILL)
        for pid in gateways:
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in gateways), self._process.output)

    def close(self) -> None:
        if self._process.popen is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _wait_ready(self, number: int) -> None:
        wait_ready(f"http://{self._operator_urls[number]}", check=self._process.check, log=self._process.output)


class SharedSocketGateway:
    """A gateway with the code of any tree, on a socket that it shares with others and that outlives it."""

    def __init__(self, listener: socket.socket, environ: Mapping[str, str], log: Path) -> None:
        """Prepare a gateway.

        environ: the variables of its environment, but for those that depend on the tree. log: the file for its output.
        """
        self._listener = listener
        self._environ = environ
        self._log = log
        self._process: ChildProcess | None = None
        self._address = ""

    def start(self, tree: Path) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        environ = {**self._environ, **of_tree(tree), "LORIKEET_METRICS_LISTEN": self._address}
        descriptor = self._listener.fileno()
        command = [*COMMAND, "--fd", str(descriptor)]
        self._process = ChildProcess(command, log=self._log, env=environ, pass_fds=[descriptor])
        self._process.start()

    def wait_ready(self) -> None:
        assert self._process is not None
        wait_ready(f"http://{self._address}", check=self._process.check, log=self._process.output)

    def terminate(self) -> None:
        """Stop the gateway gracefully.

        Raises AssertionError: when its exit code is not 0.
        """
        assert self._process is not None
        code = self._process.terminate()
        assert code == 0, self._process.output()[-2000:]

    def replace(self, tree: Path) -> None:
        """Stop the gateway gracefully, and start one with the code of a tree in its place."""
        self.terminate()
        self.start(tree)
        self.wait_ready()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()


def of_tree(tree: Path) -> dict[str, str]:
    """Return the environment variables with which Python imports the code of a tree from any folder."""
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": ""}

"""The process of an agent: from its settings to its end. SIGTERM and SIGINT end it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from gateway.agent.agent import Agent, CannotRun
from gateway.agent.commands import Command, engine_command
from gateway.agent.hardware import Hardware, this_host
from gateway.agent.launcher import Launcher
from gateway.agent.lease import OtherPlacement, Removed, Superseded
from gateway.agent.listeners import LinkListener, SocketListener
from gateway.agent.local import LocalLauncher
from gateway.agent.ray.launcher import RayLauncher
from gateway.agent.servers.programs import find_programs
from gateway.db.pool import Database
from gateway.settings import Settings
from gateway.support.process import private_folder

NUM_CONNECTIONS = 6


def run_agent(
    settings: Settings,
    dsn: str,
    *,
    command: Command = engine_command,
    stops_engines: bool = False,
    drains_engines: bool = False,
    gives_up: bool = False,
) -> int:
    """Run the agent of this host until a signal ends it; return the exit code.

    command: returns the command that starts an engine.
    stops_engines: True: at a signal end the engines as well, which serve on otherwise.
    drains_engines: True: at a signal let engines finish their requests, then end them; a second signal does not wait.
    gives_up: True: end with EX_CONFIG and the reason where no engine can be started.

    Raises one of `gateway.db.pool.UNUSABLE`: when the connection string or the schema is wrong.
    Raises one of `gateway.db.pool.UNAVAILABLE`: when the database cannot be reached.
    """
    ends = stops_engines or drains_engines
    return asyncio.run(
        _run(settings, dsn, command, stops_engines=ends, drains_engines=drains_engines, gives_up=gives_up)
    )


async def _run(
    settings: Settings, dsn: str, command: Command, *, stops_engines: bool, drains_engines: bool, gives_up: bool
) -> int:
    settings.run_dir.parent.mkdir(parents=True, exist_ok=True)
    private_folder(settings.run_dir, os.geteuid(), os.getegid())
    launcher = _launcher(settings)
    hardware = await asyncio.to_thread(this_host, settings.engine.device)
    if settings.placement != "local":  # its engines compute elsewhere
        hardware = Hardware(hardware.name, 0, 0, [], [])
    programs = find_programs(settings)
    async with await Database.connect(dsn, max_size=NUM_CONNECTIONS) as database:
        agent = Agent(database, settings, hardware, launcher, command, programs, gives_up=gives_up)
        running = asyncio.create_task(agent.run())
        loop, forced = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            if drains_engines and not agent.is_leaving:
                agent.leave()
            elif not running.cancel():
                forced.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        code, is_superseded, why = os.EX_OK, False, ""
        try:
            await running
        except asyncio.CancelledError:
            pass
        except Removed as error:  # no other agent will tend its engines
            code, stops_engines, why = os.EX_CONFIG, True, str(error)
        except OtherPlacement as error:
            code, is_superseded, why = os.EX_CONFIG, True, str(error)
        except Superseded as error:
            code, is_superseded, why = os.EX_TEMPFAIL, True, str(error)
        except CannotRun as error:
            code, stops_engines, why = os.EX_CONFIG, True, str(error)
        await agent.end(stops_engines=stops_engines, forced=forced, is_superseded=is_superseded)
        sys.stderr.writelines(f"agent: {line}\n" for line in why.splitlines())
        return code


def _launcher(settings: Settings) -> Launcher:
    """Return the launcher of engines that the settings ask for.

    Raises OSError or BadKey: when engines serve other machines and this host's keys cannot be read.
    """
    if settings.placement == "ray":
        return RayLauncher(settings)
    link = (
        LinkListener(settings.link_address, settings.engine_ports, settings.data_dir) if settings.link_address else None
    )
    return LocalLauncher(settings.data_dir / "replicas", settings.log_dir, link or SocketListener(settings.run_dir))

"""`python -m engine`: one engine process. Stops cleanly on SIGTERM or SIGINT once the running requests have ended."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

import zmq

from adapters.errors import StoreFailure
from engine.config import EngineConfig, UnsupportedModel
from engine.config.endpoint import BadEndpoint, check_endpoint
from engine.config.imports import no_collections
from engine.config.openmp import spin_briefly
from engine.config.text import read_flags
from engine.curve import BadKey


def parse_arguments(argv: list[str] | None = None) -> EngineConfig:
    """Read the flags: a field of `EngineConfig` each. A wrong one ends the process with a line that names it.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    config = read_flags(parser, EngineConfig, argv)
    try:
        check_endpoint(config.endpoint, is_open=config.open_endpoint, is_guarded=bool(config.link_dir))
    except BadEndpoint as error:
        parser.error(f"argument --endpoint: {config.endpoint!r}: {error}")
    return config


def main() -> int:
    """Run one engine until it has to stop; return the exit status."""
    config = parse_arguments()
    os.umask(0o077)  # its socket is for its own user
    spin_briefly()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with no_collections():
        from engine.hardware import SetupError, return_memory
        from engine.setup import build_engine  # imports torch: after the arguments are known to be good

    try:
        core, server = build_engine(config)
    except (SetupError, StoreFailure, UnsupportedModel) as error:
        sys.stderr.write(f"engine: {error}\n")
        return os.EX_CONFIG
    except (BadKey, zmq.ZMQError) as error:
        sys.stderr.write(f"engine: can't listen on {config.endpoint}: {error}\n")
        return os.EX_CONFIG
    # The garbage collector need not walk through objects that live as long as the process: all steps would wait for it.
    gc.collect()
    gc.freeze()
    return_memory()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.drain())
    serving = threading.Thread(target=_run_or_die, args=(server.run,), name="engine-server", daemon=True)
    serving.start()
    # Steps run in the thread that loaded the model. Each thread that computes in parallel gets OpenMP workers of its
    # own, and once there are more of all than processors, libgomp's workers sleep instead of spinning between
    # operations: waking them hundreds of times a step halves its speed.
    _run_or_die(core.run)
    serving.join()
    return 0


def _run_or_die(run: Callable[[], None]) -> None:
    """Run a thread's function, and end the process if it ends on a fault, so that the supervisor sees the fault."""
    try:
        run()
    except BaseException:
        logging.getLogger("engine").exception("the %s thread failed", threading.current_thread().name)
        os._exit(os.EX_SOFTWARE)


if __name__ == "__main__":
    sys.exit(main())

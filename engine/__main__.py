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


def parse_arguments(argv: list[str] | None = None) -> EngineConfig:
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    add = parser.add_argument
    add("--model-dir", required=True, help="folder with config.json and *.safetensors")
    add("--adapter-store", required=True, help="the adapter store: its folder, or s3://bucket/prefix")
    add("--adapter-cache-dir", default="", help="folder for what is read of a store in a bucket")
    add("--adapter-cache-bytes", type=int, default=8 << 30, help="disk that it may take")
    add("--endpoint", required=True, help="ZeroMQ address to listen on, such as ipc:///run/lorikeet/engine.sock")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    add("--kv-cache-bytes", type=int, default=None, help="memory of the KV cache (default: chosen at start)")
    add("--max-model-len", type=int, default=0, help="context in tokens (0: the model's own)")
    add("--max-num-seqs", type=int, default=64, help="sequences in one step")
    add("--max-batched-tokens", type=int, default=0, help="tokens in one step (0: 512 on a CPU, 2048 on a GPU)")
    add("--max-waiting", type=int, default=512, help="requests in the queue before new ones are refused")
    add("--max-adapters", type=int, default=32, help="adapters on the device at once")
    add("--max-adapter-rank", type=int, default=256, help="adapters of a larger rank are refused")
    add("--adapter-device-bytes", type=int, default=None, help="memory of those (default: chosen at start)")
    add("--adapter-host-bytes", type=int, default=1 << 30, help="memory of adapters kept ready beside the device")
    add("--gpu-memory-fraction", type=float, default=0.9, help="of a GPU's memory, before graphs are captured")
    add("--num-threads", type=int, default=0, help="CPU threads (0: all this process may use)")
    add("--num-draft-tokens", type=int, default=0, help="tokens speculated per step by prompt lookup (0: off)")
    return EngineConfig(**vars(parser.parse_args(argv)))


def main() -> int:
    config = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    from engine.hardware import SetupError
    from engine.setup import build_engine  # imports torch: after the arguments are known to be good

    try:
        core, server = build_engine(config)
    except (SetupError, StoreFailure, UnsupportedModel) as error:
        sys.stderr.write(f"engine: {error}\n")
        return os.EX_CONFIG
    except zmq.ZMQError as error:
        sys.stderr.write(f"engine: can't listen on {config.endpoint}: {error}\n")
        return os.EX_CONFIG
    # What lives as long as the process need not be walked through amid steps, which would all wait for that.
    gc.collect()
    gc.freeze()
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
    """A thread that ends on a fault takes the process with it, so that the supervisor sees it."""
    try:
        run()
    except BaseException:
        logging.getLogger("engine").exception("the %s thread failed", threading.current_thread().name)
        os._exit(os.EX_SOFTWARE)


if __name__ == "__main__":
    sys.exit(main())

"""llama.cpp's own server out of the wheel `xllamacpp`, by the flags of `llama-server` that an agent gives.

It serves until SIGTERM, and then ends at once, as `llama-server` does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from gateway.agent.servers.programs import LLAMA_WHEEL


def main() -> None:
    """Run the server until a signal ends it. Exit with EX_CONFIG where the wheel is missing."""
    try:
        import xllamacpp
    except ImportError as error:
        sys.stderr.write(f"engine: the Python package {LLAMA_WHEEL} cannot be loaded: {error}\n")
        sys.exit(os.EX_CONFIG)
    given = _flags().parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = given.model, {given.alias}
    params.hostnames, params.endpoint_metrics = [given.host], True
    params.api_keys = Path(given.api_key_file).read_text().split()
    params.n_ctx, params.n_parallel, params.n_gpu_layers = given.ctx_size, given.parallel, given.n_gpu_layers
    if given.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    if given.lora:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in given.lora]
        params.lora_init_without_apply = True
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    server = xllamacpp.Server(params)
    sys.stderr.write(f"listening on {server.listening_address}\n")
    sys.stderr.flush()
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    os._exit(0)


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--model", "--alias", "--host", "--api-key-file"):
        parser.add_argument(name, required=True)
    for name in ("--ctx-size", "--parallel", "--n-gpu-layers", "--threads"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--lora", action="append", default=[])
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--lora-init-without-apply", action="store_true")
    return parser


if __name__ == "__main__":
    main()

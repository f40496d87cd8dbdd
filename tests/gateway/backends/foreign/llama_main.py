"""Run llama.cpp's own server over a model file until standard input closes, and say where it listens."""

from __future__ import annotations

import sys

import xllamacpp


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.port = 0
    params.n_ctx, params.n_parallel = 2048, 2
    params.cpuparams.n_threads = 2
    adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in sys.argv[2:]]
    if adapters:
        params.lora_adapters, params.lora_init_without_apply = adapters, True
    server = xllamacpp.Server(params)
    print(f"listening {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

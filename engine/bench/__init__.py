"""The engine's benchmarks: `python -m engine.bench`. They run the whole engine in this process, without its socket.

`drive` runs the engine's loop on a thread and feeds it; `workload` and `adapters` make what it is fed with; each
scenario is a module of its own that turns an `EngineConfig` and its `Options` into rows. `shape` measures a GPU with a
model of random weights. These are programs, not tests: no test asserts a time.
"""

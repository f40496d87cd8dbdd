"""`python -m gateway.bench.adapters`: what adapters cost those who come with them, and those who do not.

Three rows: how long an upload takes to its first answer; the gaps between the tokens of running streams while cold
adapters arrive, beside the same with a resident one; the throughput of good traffic while refused adapters are uploaded
one after the other, beside the same without. Each pair is measured in turns on a server of the benchmark's own. A
program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import uvloop
from numpy.typing import NDArray

from engine.config import ModelConfig, load_model_config
from gateway.bench.client import Job, Reply, send_job
from gateway.bench.load import WORDS, Unusable, quantile_ms
from gateway.bench.own_server import own_server
from gateway.settings import DEMO_MODEL_NAME

UPLOAD_BYTES = 10_000_000
NUM_COLD = 6
COLD_SLOTS = 2
"""Slots for adapters: fewer than cold adapters, so that each is evicted before its turn comes again."""

NUM_STREAMS = 4
STREAM_TOKENS = 100
ARRIVAL_EVERY_S = 0.25
FILES = ("adapter_config.json", "adapter_model.safetensors")
REJECTED, PAUSED = "adapter_rejected", "adapter_uploads_paused"


class Run(NamedTuple):
    """The number of tokens of streams that ran together, and the seconds that they took."""

    num_tokens: int
    seconds: float


class Server:
    """The APIs of one server that a benchmark uses: the tenant's and the admin API.

    Raises Unusable: when one of the APIs refuses.
    """

    def __init__(self, access: dict[str, str], model: str) -> None:
        url = access["OPENAI_BASE_URL"]
        self.model = model
        self._tenant = _client(url, access["OPENAI_API_KEY"])
        self._admin = _client(f"{url}/organization", access["LORIKEET_ADMIN_KEY"])
        self._adapters = ""

    async def __aenter__(self) -> Server:
        (project,) = (await self._admin.get("/projects", params={"name": "acme"})).json()["data"]
        self._adapters = f"/projects/{project['id']}/adapters"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tenant.aclose()
        await self._admin.aclose()

    async def upload(self, name: str, folder: Path) -> httpx.Response:
        """Send the files of an adapter's folder under a name; return the reply, whatever its status."""
        files = {file: (folder / file).read_bytes() for file in FILES}
        return await self._admin.post(self._adapters, data={"name": name}, files=files)

    async def add(self, name: str, folder: Path) -> None:
        """Upload an adapter. Raises Unusable: when its version is not ready in the reply."""
        reply = await self.upload(name, folder)
        if reply.status_code != httpx.codes.OK or reply.json()["version_state"] != "ready":
            raise Unusable(f"an adapter was not taken: {reply.text}")

    async def ask(self, adapter: str, max_tokens: int) -> Reply:
        """Ask for a completion by an adapter, or by the base where the name is ""."""
        model = f"{self.model}:{adapter}" if adapter else self.model
        return await send_job(self._tenant, Job(model, " ".join(WORDS), max_tokens))


def _client(url: str, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=120, limits=httpx.Limits(), trust_env=False)


def write_adapter(folder: Path, config: ModelConfig, num_bytes: int, seed: int) -> Path:
    """Write an adapter of about num_bytes with random fp32 weights on every projection; return its folder."""
    targets, rng = config.adapter_targets(), np.random.default_rng(seed)
    of_a_rank = 4 * config.num_layers * sum(sum(sizes) for sizes in targets.values())
    rank = max(1, round(num_bytes / of_a_rank))
    blocks = {"gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp"}
    tensors: dict[str, NDArray[np.float32]] = {}
    for layer in range(config.num_layers):
        for projection, (num_in, num_out) in targets.items():
            name = f"base_model.model.model.layers.{layer}.{blocks.get(projection, 'self_attn')}.{projection}"
            for side, shape in (("A", (rank, num_in)), ("B", (num_out, rank))):
                tensors[f"{name}.lora_{side}.weight"] = (0.01 * rng.standard_normal(shape)).astype("<f4")
    folder.mkdir(parents=True)
    (folder / FILES[1]).write_bytes(safetensors(tensors))
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(targets), "bias": "none"}
    (folder / FILES[0]).write_text(json.dumps(settings))
    return folder


def safetensors(tensors: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return a file of fp32 tensors: https://huggingface.co/docs/safetensors."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [end, end := end + tensor.nbytes]}
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(tensor.tobytes() for tensor in tensors.values())])


async def measure_uploads(server: Server, folders: Sequence[Path]) -> dict[str, Any]:
    """Measure uploads: return the times from an upload's first byte to the first token of its first answer."""
    seconds = []
    for number, folder in enumerate(folders):
        start_s = time.perf_counter()
        await server.add(f"upload-{number}", folder)
        reply = await server.ask(f"upload-{number}", 1)
        seconds.append(time.perf_counter() - start_s)
        assert reply.num_tokens == 1
    size = sum((folders[0] / file).stat().st_size for file in FILES)
    return {"row": "upload", "bytes": size, "uploads": len(seconds), "s_p50": _rounded(statistics.median(seconds)),
            "s_max": _rounded(max(seconds))}  # fmt: skip


async def measure_arrivals(server: Server, names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Measure the gaps of running streams while tokens of a resident adapter, or of cold ones, are asked for.

    rounds: how often each of the two is measured, in turns.
    """
    gaps: dict[str, list[float]] = {"resident": [], "cold": []}
    loads: dict[str, list[float]] = {"resident": [], "cold": []}
    for _ in range(rounds):
        for kind, asked in (("resident", names[:1]), ("cold", names)):
            await server.ask(names[0], 1)
            replies, arrived = await _ask_in_turn_beside(_streams(server), server, asked)
            gaps[kind] += [gap for reply in replies for gap in reply.gaps_s]
            loads[kind] += [reply.ttft_s for reply in arrived]
    row: dict[str, Any] = {"row": "arrivals", "streams": NUM_STREAMS}
    for kind in gaps:
        row |= {f"{kind}_arrivals": len(loads[kind]), f"{kind}_ttft_ms_p50": quantile_ms(loads[kind], 0.5)}
        row |= {f"{kind}_gap_ms_p50": quantile_ms(gaps[kind], 0.5), f"{kind}_gap_ms_p99": quantile_ms(gaps[kind], 0.99)}
    return row | {"ratio_p99": round(row["cold_gap_ms_p99"] / row["resident_gap_ms_p99"], 2)}


async def measure_bad_uploads(server: Server, bad: Path, count: int, rounds: int) -> dict[str, Any]:
    """Measure tokens per second of running streams, alone and while adapters are refused one after the other.

    The rates are over all rounds together; `ratio_worst` is the slowest run beside the uploads.

    bad: the file that is refused. count: the uploads in one run. rounds: how often each of the two is measured, in
    turns.
    """
    runs: dict[str, list[Run]] = {"alone": [], "beside": []}
    outcomes: Counter[str] = Counter()
    for number in range(rounds):
        runs["alone"].append(await _run(server))
        refusing = asyncio.create_task(_refused(server, bad, count * (number + 1) // rounds - count * number // rounds))
        while not refusing.done():
            runs["beside"].append(await _run(server))
        outcomes += await refusing
    alone, beside = (_rate(runs[kind]) for kind in ("alone", "beside"))
    return {"row": "bad uploads", "inspected": outcomes[REJECTED], "paused": outcomes[PAUSED],
            "tokens_per_s_alone": round(alone, 1), "tokens_per_s_beside": round(beside, 1),
            "ratio": round(beside / alone, 3),
            "ratio_worst": round(min(_rate([run]) for run in runs["beside"]) / alone, 3)}  # fmt: skip


async def _streams(server: Server) -> list[Reply]:
    return list(await asyncio.gather(*(server.ask("", STREAM_TOKENS) for _ in range(NUM_STREAMS))))


async def _run(server: Server) -> Run:
    start_s = time.perf_counter()
    replies = await _streams(server)
    return Run(sum(reply.num_tokens for reply in replies), time.perf_counter() - start_s)


def _rate(runs: Sequence[Run]) -> float:
    """Return the tokens per second of all runs together."""
    return sum(run.num_tokens for run in runs) / sum(run.seconds for run in runs)


async def _ask_in_turn_beside(
    streams: Awaitable[list[Reply]], server: Server, adapters: Sequence[str]
) -> tuple[list[Reply], list[Reply]]:
    """Run the streams while each adapter is asked for a token in turn; return both kinds of replies."""
    running = asyncio.ensure_future(streams)
    arrived: list[Reply] = []
    while not running.done():
        arrived.append(await server.ask(adapters[len(arrived) % len(adapters)], 1))
        await asyncio.wait([running], timeout=ARRIVAL_EVERY_S)
    return await running, arrived


async def _refused(server: Server, bad: Path, count: int) -> Counter[str]:
    """Upload bad adapters; count those refused by inspection, and those refused since the project is paused."""
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        reply = await server.upload("bad", bad)
        code = reply.json().get("error", {}).get("code")
        if code not in (REJECTED, PAUSED):
            raise Unusable(f"a bad adapter was not refused as one: {reply.text}")
        outcomes[code] += 1
    return outcomes


async def rows(access: dict[str, str], args: argparse.Namespace, folder: Path) -> AsyncIterator[dict[str, Any]]:
    """Yield the rows of all measurements. Raises Unusable: when the server cannot be measured."""
    config = load_model_config(args.model_dir)
    adapters = [write_adapter(folder / str(n), config, args.bytes, n) for n in range(NUM_COLD)]
    async with Server(access, args.model_name) as server:
        yield await measure_uploads(server, adapters)
        yield await measure_arrivals(server, [f"upload-{n}" for n in range(NUM_COLD)], args.rounds)
        yield await measure_bad_uploads(server, _spoiled(adapters[0], folder / "bad"), args.bad, args.rounds)


def _spoiled(good: Path, folder: Path) -> Path:
    """Return a copy of an adapter whose last weight is NaN: the whole file has to be read to find the fault."""
    folder.mkdir()
    (folder / FILES[0]).write_bytes((good / FILES[0]).read_bytes())
    (folder / FILES[1]).write_bytes((good / FILES[1]).read_bytes()[:-4] + np.float32(np.nan).tobytes())
    return folder


def _rounded(seconds: float) -> float:
    return round(seconds, 2)


@contextlib.contextmanager
def _site(args: argparse.Namespace) -> Iterator[tuple[dict[str, str], Path]]:
    settings = {"LORIKEET_MAX_ADAPTERS": str(COLD_SLOTS), "LORIKEET_ADAPTER_HOST_BYTES": "1"}
    with own_server(args.serve.absolute(), settings) as access, tempfile.TemporaryDirectory() as folder:
        yield access, Path(folder)


async def _print_rows(args: argparse.Namespace, access: dict[str, str], folder: Path) -> None:
    async for row in rows(access, args, folder):
        line = json.dumps(row) if args.json else "  ".join(f"{key} {value}" for key, value in row.items())
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.adapters", description=__doc__)
    add = parser.add_argument
    add("--serve", type=Path, metavar="FOLDER", required=True, help="data folder of the server it starts, made anew")
    add("--model-dir", type=Path, required=True, help="folder of the demo's model, for its sizes")
    add("--model-name", default=DEMO_MODEL_NAME, help="the model's name at the server")
    add("--bytes", type=int, default=UPLOAD_BYTES, help="size of an adapter")
    add("--bad", type=int, default=50, help="adapters that are refused")
    add("--rounds", type=int, default=5, help="turns of each pair")
    add("--json", action="store_true", help="one JSON line per row")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line; return 0, or 1 where the server cannot be measured.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv)
    try:
        with _site(args) as (access, folder), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_print_rows(args, access, folder))
    except Unusable as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

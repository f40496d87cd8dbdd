"""`python -m gateway.bench.batches`: a batch of lines over many adapters in any order, beside the same lines sorted.

Batches of mixed and of sorted lines take turns on a server of the benchmark's own: 1,000 lines over 64 adapters, twice
as many as the engine has slots for. PASS where the mixed file gets at least the bound of the sorted one's tokens per
second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import httpx
import uvloop

from engine.config import load_model_config
from gateway.bench.adapters import Server, write_adapter
from gateway.bench.load import Unusable
from gateway.bench.own_server import own_server
from gateway.settings import DEMO_MODEL_NAME

ENDPOINT = "/v1/chat/completions"
LEAST = 0.9
POLL_S = 0.2
OPEN = ("validating", "in_progress", "finalizing")


def lines_of(names: Sequence[str], args: argparse.Namespace) -> list[str]:
    """Return the lines of a batch file, sorted by adapter. Each line asks for the same number of tokens."""
    found = []
    for number in range(args.lines):
        body = {
            "model": f"{DEMO_MODEL_NAME}:{names[number * len(names) // args.lines]}",
            "messages": [{"role": "user", "content": f"Describe the number {number} in a few words."}],
            "max_tokens": args.new_tokens,
            "ignore_eos": True,
        }
        found.append(json.dumps({"custom_id": str(number), "method": "POST", "url": ENDPOINT, "body": body}))
    return found


async def seconds_of(api: httpx.AsyncClient, lines: Sequence[str]) -> float:
    """Run a batch of these lines, and return the seconds that it took. Raises Unusable: when a line failed."""
    form = {"file": ("lines.jsonl", "\n".join(lines).encode())}
    file = (await api.post("/files", files=form, data={"purpose": "batch"})).json()
    asked = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    batch = (await api.post("/batches", json=asked)).json()
    loop, began_s = asyncio.get_running_loop(), 0.0
    while batch["status"] in OPEN:
        await asyncio.sleep(POLL_S)
        batch = (await api.get(f"/batches/{batch['id']}")).json()
        if batch["status"] == "in_progress" and not began_s:
            began_s = loop.time()
    if batch["status"] != "completed" or batch["request_counts"]["completed"] != len(lines):
        raise Unusable(f"the batch ended as {batch['status']}: {batch['request_counts']}")
    return loop.time() - began_s


async def measured(access: dict[str, str], args: argparse.Namespace, folder: Path) -> float:
    """Print the rows of all turns; return the median of the turns' ratios of mixed to sorted tokens per second."""
    config = load_model_config(args.model_dir)
    names = [f"a{number}" for number in range(args.adapters)]
    async with Server(access, DEMO_MODEL_NAME) as server:
        for number, name in enumerate(names):
            await server.add(name, write_adapter(folder / name, config, args.bytes, number))
    ordered = lines_of(names, args)
    mixed = random.Random(0).sample(ordered, len(ordered))  # noqa: S311
    ratios = []
    headers = {"authorization": f"Bearer {access['OPENAI_API_KEY']}"}
    async with httpx.AsyncClient(base_url=access["OPENAI_BASE_URL"], headers=headers, timeout=120) as api:
        await seconds_of(api, ordered[:: max(len(ordered) // 64, 1)])  # warms up
        for turn in range(args.repeat):
            sides = {"sorted": ordered, "mixed": mixed}
            took_s = {name: await seconds_of(api, sides[name]) for name in sorted(sides, reverse=bool(turn % 2))}
            ratios.append(took_s["sorted"] / took_s["mixed"])
            rates = (f"{name} {args.lines * args.new_tokens / took:.1f}" for name, took in took_s.items())
            _say(f"turn {turn}: tokens/s {', '.join(rates)}: {ratios[-1]:.2f}")
    return median(ratios)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.batches", description=__doc__)
    add = parser.add_argument
    add("--serve", type=Path, metavar="FOLDER", default=Path("build/bench-batches"), help="data folder of its server")
    add("--model-dir", type=Path, required=True, help="folder of the demo's model, for its sizes")
    add("--adapters", type=int, default=64, help="adapters that lines name")
    add("--lines", type=int, default=1000, help="lines of a batch")
    add("--new-tokens", type=int, default=16, help="tokens of each line's answer")
    add("--bytes", type=int, default=2_500_000, help="size of an adapter")
    add("--repeat", type=int, default=3, help="turns of both files")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 1 where the bound is missed or the server cannot be measured.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv)
    try:
        with (
            own_server(args.serve.absolute()) as access,
            tempfile.TemporaryDirectory() as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            ratio = runner.run(measured(access, args, Path(folder)))
    except Unusable as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    verdict = "PASS" if ratio >= LEAST else "FAIL"
    _say(f"{args.lines} lines over {args.adapters} adapters, mixed to sorted: {ratio:.2f}, >= {LEAST}: {verdict}")
    return int(ratio < LEAST)


if __name__ == "__main__":
    sys.exit(main())

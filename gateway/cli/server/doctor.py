"""`lorikeet doctor`: this machine's hardware, the way in which an engine would compute here, and advice for speed.

The facts come from `python -m engine.doctor` in a process of its own, since they need PyTorch. Needs no server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_result
from gateway.cli.verbs import add_command
from gateway.settings import Settings, load_settings

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

MEASURE_S = 10.0
MAX_MEASURE_S = 300.0
START_S = 120.0
"""The seconds that the process gets beside its measurement: loading PyTorch from a slow disk takes long."""

GIB = 1 << 30


def register(verbs: Verbs) -> None:
    """Add `lorikeet doctor` to the command line."""
    doctor = add_command(
        verbs,
        "doctor",
        _doctor,
        "Show what this machine offers (processor, memory, GPU, other load), how an engine with the "
        "present settings would compute here and why, and what would make it faster. Then measure for ten seconds how "
        "long the demo model's products take, beside the rate at which memory is read. Needs no server.",
    )
    doctor.add_argument(
        "--measure",
        type=_seconds,
        default=MEASURE_S,
        metavar="SECONDS",
        help=f"length of the measurement, 0 for none, at most {MAX_MEASURE_S:g} (default: {MEASURE_S:g})",
    )


def _doctor(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    report = _report(settings, environ, arguments.measure)
    report["data_folder"] = _data_folder(settings.data_dir)
    report["ray"] = _ray(settings) if settings.placement == "ray" else None
    return print_result(arguments, report, "\n".join(_lines(report)))


def _report(settings: Settings, environ: Mapping[str, str], measure_s: float) -> dict[str, Any]:
    """Return the report of the engine's own program.

    measure_s: the seconds for the measurement; 0: nothing is measured.

    Raises CommandFailed: when the program fails.
    """
    from engine.config.text import whole_flag
    from gateway.agent.commands import engine_environ
    from gateway.support.model_folders import prepared_folder

    in_place = any(Path(settings.model).glob("*.safetensors"))
    folder = Path(settings.model) if in_place else prepared_folder(settings)
    config = msgspec.structs.replace(settings.engine, model_dir=str(folder))
    ours = ["--measure-s", f"{measure_s:g}", "--source", settings.model]
    command = [sys.executable, "-m", "engine.doctor", *ours, *whole_flag(config)]
    try:
        done = subprocess.run(
            command,
            env=engine_environ(environ),
            capture_output=True,
            text=True,
            timeout=measure_s + START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed("the measurement did not end in time: the machine may be very busy") from None
    if done.returncode != os.EX_OK:
        lines = done.stderr.strip().splitlines()
        raise CommandFailed(
            lines[-1].removeprefix("engine: ") if lines else "the engine's program failed without a word"
        )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _data_folder(folder: Path) -> dict[str, Any]:
    """Return the path of the data folder, whether it exists, and the free bytes of its disk."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    usage = shutil.disk_usage(there)
    return {"path": str(folder), "exists": folder.exists(), "free_bytes": usage.free}


def _ray(settings: Settings) -> dict[str, Any]:
    """Return the number of nodes of the Ray cluster, and the reason why the cluster cannot be reached, if any."""
    from gateway.agent.launcher import CannotReach
    from gateway.agent.ray.launcher import count_nodes

    try:
        return {"num_nodes": asyncio.run(count_nodes(settings)), "why_not": ""}
    except CannotReach as error:
        return {"num_nodes": 0, "why_not": str(error)}


def _lines(report: dict[str, Any]) -> list[str]:
    machine, choice, folder = report["machine"], report["choice"], report["data_folder"]
    quota = "" if machine["quota"] is None else f", of which the control group allows {machine['quota']:g}"
    limit = machine["memory_limit_bytes"]
    bound = "" if limit is None else f", bounded to {limit / GIB:.1f} GiB"
    lines = [
        f"processor    {machine['processor'] or 'unknown'}: {machine['num_processors']} usable{quota}",
        f"features     {' '.join(machine['features']) or 'none that matter here'}",
        f"memory       {machine['available_bytes'] / GIB:.1f} of {machine['memory_bytes'] / GIB:.1f} GiB free{bound}",
        f"other load   {machine['busy']:.1f} processors busy now, load average {machine['load']:.1f}",
        f"data folder  {folder['path']}: {folder['free_bytes'] / GIB:.1f} GiB free on its disk",
    ]
    if (ray := report["ray"]) is not None:
        lines.append(f"Ray cluster  {ray['why_not'] or str(ray['num_nodes']) + ' nodes'}")
    for gpu in report["gpus"]:
        free, total = gpu["free_bytes"] / GIB, gpu["memory_bytes"] / GIB
        lines.append(f"GPU          {gpu['name']} ({gpu['capability']}): {free:.1f} of {total:.1f} GiB free")
    lines += ["", f"An engine computes here {_choice_in_words(choice)}.", *(f"  {line}" for line in choice["reasons"])]
    if (measured := report["measured"]) is not None:
        lines += [
            "",
            f"A step of the demo model multiplies by {measured['weights_bytes'] / 1e6:.0f} MB of matrices: "
            f"{measured['products_ms']:g} ms for one row.",
            f"  Memory is read at {measured['read_gb_per_s']:g} GB/s, so that reading them alone takes "
            f"{measured['floor_ms']:g} ms.",
        ]
    advice = choice["advice"] or ["Nothing stands out."]
    return [*lines, "", "What would make it faster:", *(f"  {line}" for line in advice)]


def _choice_in_words(choice: dict[str, Any]) -> str:
    """Return in half a line how an engine would compute: device, dtype, threads and matrix products."""
    if choice["device"] != "cpu":
        return f"on the GPU in {choice['dtype']}"
    threads = choice["num_threads"]
    return (
        f"on the processor in {choice['dtype']}, {threads} thread{'s' * (threads != 1)}, products by "
        f"{'PyTorch' if choice['products'] == 'torch' else choice['products']}"
    )


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= MAX_MEASURE_S:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0 to {MAX_MEASURE_S:g}, not {text!r}")
    return number

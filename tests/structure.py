"""`python -m tests.structure`: measure the floor plan from the code's own imports, as one table.

Knows the rooms of the gateway by their folders and the floors by the layers contract in pyproject.toml, nothing else.
Imports that only type checkers follow count like all others.
"""

from __future__ import annotations

import ast
import collections
import functools
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("gateway", "engine", "kernels", "adapters")
ROOMS_OF = "gateway"
UNCOUNTED = ("/vendor/", "/migrations/")
"""Folders whose files do not count: written elsewhere, or numbered in order."""

Imports = dict[str, set[str]]


class Plan(msgspec.Struct, frozen=True):
    """The figures of one checkout's structure."""

    levels: int
    """The number of rooms on the longest chain of imports in the gateway."""
    chain: list[str]
    """The rooms of one longest chain, the highest first."""
    mutual: list[tuple[str, str]]
    """The pairs of rooms that import each other."""
    arrows_up: list[tuple[str, str]]
    """Imports, as (importer, imported) room, that do not point to a lower floor of the contract."""
    folders: list[tuple[int, str]]
    """(number of Python and JavaScript files, folder), the fullest folder first."""
    homeless: list[str]
    """The modules of the gateway outside of all rooms."""


def measure(root: Path = REPOSITORY) -> Plan:
    """Return the plan of the tracked files of a checkout.

    Raises RuntimeError: when rooms import in a circle.
    """
    files = _tracked_files(root)
    imports = rooms_imports(root, files)
    chain = _longest_chain(imports)
    floors = _floors(root)
    up = [(a, b) for a, targets in imports.items() for b in targets if floors.get(a, -1) <= floors.get(b, -1)]
    mutual = sorted({(a, b) for a, targets in imports.items() for b in targets if a < b and a in imports.get(b, ())})
    counts = collections.Counter(
        str(Path(name).parent)
        for name in files
        if name.startswith((*(f"{package}/" for package in PACKAGES), "admin_ui/"))
        and not any(part in name for part in UNCOUNTED)
    )
    homeless = [name for name in files if Path(name).parent == Path(ROOMS_OF) and Path(name).name != "__init__.py"]
    fullest = sorted(((count, folder) for folder, count in counts.items()), reverse=True)
    return Plan(len(chain), chain, mutual, sorted(up), fullest, homeless)


def importers(root: Path, library: str) -> set[str]:
    """Return the folders, two parts deep, whose modules import a library themselves."""
    found = set()
    for name in _tracked_files(root):
        if name.startswith(tuple(f"{package}/" for package in PACKAGES)) and name.endswith(".py"):
            modules = {module.split(".")[0] for module in _imported(root / name)}
            if library in modules:
                found.add("/".join(Path(name).parts[:2]) if len(Path(name).parts) > 2 else name)
    return found


def rooms_imports(root: Path, files: list[str]) -> Imports:
    """Return the rooms that each room of the gateway imports."""
    imports: Imports = collections.defaultdict(set)
    for name in files:
        parts = Path(name).parts
        if parts[0] == ROOMS_OF and len(parts) > 2 and name.endswith(".py"):
            imports[parts[1]] |= {
                module.split(".")[1]
                for module in _imported(root / name)
                if module.startswith(f"{ROOMS_OF}.") and module.split(".")[1] != parts[1]
            }
    return dict(imports)


@functools.cache
def _imported(path: Path) -> set[str]:
    """Return the absolute names of all modules and names that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _longest_chain(imports: Imports) -> list[str]:
    chains: dict[str, list[str]] = {}

    def chain(room: str, above: tuple[str, ...] = ()) -> list[str]:
        if room in above:
            raise RuntimeError("rooms import in a circle: " + " > ".join((*above, room)))
        if room not in chains:
            below = [chain(other, (*above, room)) for other in sorted(imports.get(room, ()))]
            chains[room] = [room, *max(below, key=len, default=[])]
        return chains[room]

    return max((chain(room) for room in sorted(imports)), key=len)


def _floors(root: Path) -> dict[str, int]:
    """Return each room's floor by the layers contract, the lowest 0."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each.get("containers") == [ROOMS_OF])
    return {room.strip(): floor for floor, layer in enumerate(reversed(layers)) for room in layer.split("|")}


def _tracked_files(root: Path) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.js"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    return [name for name in listed.splitlines() if (root / name).exists()]


def main() -> int:
    """Print the plan as one table."""
    plan = measure()
    print(f"levels of the gateway's rooms   {plan.levels:3}   {' > '.join(plan.chain)}")
    print(f"pairs that import each other    {len(plan.mutual):3}   {plan.mutual or ''}")
    print(f"arrows that run up              {len(plan.arrows_up):3}   {plan.arrows_up or ''}")
    print(f"modules without a room          {len(plan.homeless):3}   {' '.join(plan.homeless)}")
    print(f"files of the largest folder     {plan.folders[0][0]:3}   {plan.folders[0][1]}")
    for count, folder in plan.folders[1:6]:
        print(f"                                {count:3}   {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

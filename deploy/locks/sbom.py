"""Writes a bill of materials of the server, in CycloneDX's format.

Listed are Lorikeet, its locked packages, the scripts of others that the dashboard brings, and the demo model's package.

    python -m deploy.locks.sbom PATH
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from deploy.locks.__main__ import FOLDER, ROOT

VENDORED = ROOT / "admin_ui/vendor/VENDORED.md"
_ROW = re.compile(r"\| (\S+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \| ([0-9a-f]{64}) \|")
_CONSTANT = re.compile(r'^(DEMO_\w+) = "(.+)"$', re.MULTILINE)


def bill(requirements: str) -> dict[str, Any]:
    """Return the bill of some locked requirements, as `cyclonedx-py` makes it, with what is not a Python package."""
    program = Path(sys.executable).with_name("cyclonedx-py")
    answer = subprocess.run(
        [str(program), "requirements", "--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), "-"],
        input=requirements,
        capture_output=True,
        text=True,
        check=True,
    )
    made: dict[str, Any] = json.loads(answer.stdout)
    made["metadata"]["component"]["version"] = version()
    made["components"] = [*made["components"], *vendored(), demo_model()]
    return made


def version() -> str:
    """Return the product's version, without importing the product."""
    found = re.search(r'^VERSION = "(.+)"$', (ROOT / "engine/version.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def vendored() -> list[dict[str, Any]]:
    """Return the npm packages whose files are copied into the dashboard, each with the hashes of these files."""
    found: dict[str, dict[str, Any]] = {}
    for name, version, licence, file, _, digest in _ROW.findall(VENDORED.read_text()):
        package = f"pkg:npm/{name}@{version}"
        component = found.setdefault(
            name,
            {
                "bom-ref": package,
                "type": "library",
                "name": name,
                "version": version,
                "purl": package,
                "licenses": [{"license": {"id": licence}}],
                "components": [],
            },
        )
        component["components"].append(
            {
                "bom-ref": f"{package}#{file}",
                "type": "file",
                "name": f"admin_ui/vendor/{file}",
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
        )
    return list(found.values())


def demo_model() -> dict[str, Any]:
    """Return the package of the demo's base model, which the first start installs."""
    names = dict(_CONSTANT.findall((ROOT / "engine/prepare/sources.py").read_text()))
    package = f"pkg:pypi/{names['DEMO_DISTRIBUTION']}@{names['DEMO_VERSION']}"
    return {
        "bom-ref": package,
        "type": "machine-learning-model",
        "name": names["DEMO_DISTRIBUTION"],
        "version": names["DEMO_VERSION"],
        "purl": package,
        "scope": "optional",
        "hashes": [{"alg": "SHA-256", "content": names["DEMO_WHEEL_SHA256"]}],
    }


def main() -> None:
    """Write the bill of everything that a server with a GPU installs to the file that the command line names."""
    text = "".join((FOLDER / f"{name}.txt").read_text() for name in ("torch", "runtime", "cuda"))
    made = bill(text)
    Path(sys.argv[1]).write_text(json.dumps(made, indent=2) + "\n")
    sys.stdout.write(f"{sys.argv[1]}: {len(made['components'])} components\n")


if __name__ == "__main__":
    main()

"""`python -m deploy.manifests`: render the Helm chart without a cluster.

Without an argument it writes the manifests of `deploy/kubernetes`; with the path of a file of values, or `-` for
standard input, it prints one. Needs the package helm-python-sdk, which is Helm as a library.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
CHART = FOLDER / "chart"
OUT = FOLDER / "kubernetes"
SETS = ("cpu-demo", "production")
"""The sets of values whose manifests the repository has."""
RELEASE = "lorikeet"
NOTES = "NOTES.txt"
HEAD = "# Made of deploy/chart/values/{name}.yaml by `make manifests`: change it there. Alerts are in deploy/alerts.\n"


def render(values: dict[str, Any]) -> str:
    """Return the manifest that the chart makes of values. Raises HelmError: when the chart refuses the values."""
    from helm_python import Chart

    with Chart.load(CHART) as chart:
        files = chart.render(values=values, name=RELEASE, namespace=RELEASE)
    texts = [
        re.sub(r"\n[ ]+(?=\n)", "", text).strip() for path, text in sorted(files.items()) if not path.endswith(NOTES)
    ]
    return "".join(f"---\n{text.removeprefix('---').strip()}\n" for text in texts if has_objects(text))


def has_objects(text: str) -> bool:
    """Tell whether there is anything in a rendered file but comments."""
    return any(yaml.safe_load_all(text))


def chart_values(name: str) -> dict[str, Any]:
    """Return a set of values of the chart by its name."""
    values: dict[str, Any] = yaml.safe_load((CHART / f"values/{name}.yaml").read_text())
    return values


def stored_manifest(name: str) -> str:
    """Return a manifest as the repository has it: without the alerts, which are in a file of their own."""
    values = chart_values(name)
    values["monitoring"] = {**values.get("monitoring", {}), "alerts": False}
    return HEAD.format(name=name) + render(values)


def main() -> None:
    """Print a manifest, or write those that the repository has."""
    if len(sys.argv) > 1:
        text = sys.stdin.read() if sys.argv[1] == "-" else Path(sys.argv[1]).read_text()
        sys.stdout.write(render(yaml.safe_load(text)))
        return
    for name in SETS:
        (OUT / f"{name}.yaml").write_text(stored_manifest(name))


if __name__ == "__main__":
    main()

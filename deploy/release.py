"""Makes the files of a release in `dist/`, from what is committed, and uploads nothing.

    make release

| file | is |
|---|---|
| `lorikeet_serving-VERSION-….whl` | the product, built twice in folders of its own and equal to the byte |
| `requirements.txt`, `requirements-torch.txt` | all packages of a server by version and hash, PyTorch apart |
| `requirements-gateway.txt` | all packages of a gateway by version and hash, without PyTorch |
| `requirements-cuda.txt` | the packages that PyTorch's CUDA build asks for |
| `sbom.json` | the bill of materials in CycloneDX's format |
| `llms.txt` | the documents by title, for language models |
| `SHA256SUMS` | the hashes of all other files |
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BACKEND = ROOT / "build/backend"
"""The folder into which `make` installs the packages that build wheels, by the hashes of deploy/locks/build.txt."""

LOCKS = {
    "runtime": "requirements.txt",
    "torch": "requirements-torch.txt",
    "gateway": "requirements-gateway.txt",
    "cuda": "requirements-cuda.txt",
    "ray": "requirements-ray.txt",
}
_ROW = re.compile(r"^\| \[(.+?\.md)\]\((.+?\.md)\) \| (.+) \|$", re.MULTILINE)


class ReleaseRefused(Exception):
    """The error for a checkout of which no release can be made; the message says what to do."""


def version() -> str:
    """Return the product's version."""
    found = re.search(r'^VERSION = "(.+)"$', (ROOT / "engine/version.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def export(folder: Path) -> None:
    """Copy all files of the checkout to a folder, except those that git ignores."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def build_wheel(folder: Path) -> Path:
    """Return a wheel that is built in a folder, from a copy of the checkout that is made there."""
    folder = folder.resolve()
    export(folder)
    environ = {**os.environ, "PYTHONPATH": str(BACKEND), "SOURCE_DATE_EPOCH": committed_at()}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
    subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


def committed_at() -> str:
    """Return the time of the last commit, in seconds since 1970: the time of all files in the wheel."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def llms_text() -> str:
    """Return the documents that README.md lists, as llmstxt.org has them."""
    readme = (ROOT / "README.md").read_text()
    title, summary = re.split(r"\n\n", readme, maxsplit=2)[:2]
    rows = "\n".join(f"- [{name}]({path}): {about}" for name, path, about in _ROW.findall(readme))
    return f"{title}\n\n> {' '.join(summary.split())}\n\n## Documents\n\n{rows}\n"


def check() -> None:
    """Raise ReleaseRefused: when something is not committed, or the change log has no section of this version."""
    command = ["git", "status", "--porcelain"]
    changed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if changed:
        raise ReleaseRefused(f"these files are not committed:\n{changed}")
    if f"\n## {version()}" not in (ROOT / "CHANGELOG.md").read_text():
        raise ReleaseRefused(
            f"CHANGELOG.md has no section `## {version()}`: name the one of what is unreleased so, or write another "
            "version into engine/version.py"
        )


def make(target: Path) -> None:
    """Write all files of the release into a new folder.

    Raises ReleaseRefused: when two builds differ.
    """
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        wheel, other = build_wheel(Path(first)), build_wheel(Path(second))
        if digest(wheel) != digest(other):
            raise ReleaseRefused("two builds of the wheel differ")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        shutil.copyfile(wheel, target / wheel.name)
    for name, file in LOCKS.items():
        shutil.copyfile(ROOT / f"deploy/locks/{name}.txt", target / file)
    (target / "llms.txt").write_text(llms_text())
    bill = [str(ROOT / "build/tools/bin/python"), "-m", "deploy.locks.sbom", str(target / "sbom.json")]
    subprocess.run(bill, cwd=ROOT, check=True)
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(target.iterdir()))
    (target / "SHA256SUMS").write_text(sums)
    sys.stdout.write(sums)


def main() -> None:
    """Check the repository and make the files in `dist/`; end with one line where there can be no release."""
    try:
        check()
        make(ROOT / "dist")
    except ReleaseRefused as error:
        raise SystemExit(f"no release: {error}") from None


if __name__ == "__main__":
    main()

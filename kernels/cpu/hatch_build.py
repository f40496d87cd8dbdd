"""Builds the native kernels into wheels and into editable installs; hatchling calls this with `ziglang` installed.

If the kernels cannot be built, the wheel has none, and the engine computes with PyTorch's operations.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "kernels/cpu/_native.so"


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook that adds the native kernels to the files of a build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library and put it into the wheel.

        version: with `editable` the library stays in the checkout alone.
        """
        build = _build_module(Path(self.root))
        try:
            systems = build.build(Path(self.root) / LIBRARY)
        except build.BuildError as error:
            self.app.display_warning(f"no native kernels: {error}")
            return
        build_data["artifacts"].append(LIBRARY)
        build_data["pure_python"] = False
        # Neither Python's version nor its ABI matters, only the processor and the C library.
        build_data["tag"] = f"py3-none-{systems}"


def _build_module(root: Path) -> Any:
    """Load and return `kernels.cpu.build` from its file: the package is not installed yet."""
    spec = importlib.util.spec_from_file_location("native_kernels_build", root / "kernels" / "cpu" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

"""The shared object of the kernels for CPUs. If it is missing or does not load, PyTorch's operations compute."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path

from kernels.cpu.build import LIBRARY

log = logging.getLogger(__name__)

_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_FLOAT, _DOUBLE = ctypes.c_float, ctypes.c_double
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "lorikeet_digest": (ctypes.c_char_p, []),
    "lorikeet_num_paths": (_INT32, []),
    "lorikeet_limit_paths": (None, [_INT32]),
    "lorikeet_path_name": (ctypes.c_char_p, [_INT32]),
    "lorikeet_matrix_new": (_POINTER, [_INT32, _INT64, _INT64]),
    "lorikeet_matrix_quantize": (_POINTER, [_INT32, _POINTER, _INT64, _INT64, _POINTER, _INT32]),
    "lorikeet_matrix_pack": (_POINTER, [_INT32, _POINTER, _INT64, _INT64, _INT32]),
    "lorikeet_matrix_join": (_INT32, [_POINTER, _POINTER]),
    "lorikeet_matrix_part": (_INT32, [_POINTER, _INT64, _POINTER]),
    "lorikeet_matrix_dequantize": (None, [_POINTER, _POINTER]),
    "lorikeet_matrix_rows": (None, [_POINTER, _POINTER, _INT64, _POINTER]),
    "lorikeet_matrix_free": (None, [_POINTER]),
    "lorikeet_matrix_multiply": (_INT32, [_POINTER] * 4 + [_INT64] * 3 + [_INT32] * 4),
    "lorikeet_experts_multiply": (
        _INT32,
        [*[_POINTER] * 2, _INT64, *[_POINTER] * 3, *[_INT64] * 3, *[_INT32] * 3],
    ),
    "lorikeet_experts_adapt": (_INT32, [_POINTER, _INT32, _INT32]),
    "lorikeet_wait_for_helpers": (None, []),
    "lorikeet_decoder_new": (_POINTER, [_POINTER, _POINTER, _INT32]),
    "lorikeet_decoder_free": (None, [_POINTER]),
    "lorikeet_decoder_begin": (_INT32, [_POINTER, _POINTER]),
    "lorikeet_decoder_go_on": (_INT32, [_POINTER, _POINTER, _INT32, _POINTER, _DOUBLE]),
    "lorikeet_cache_block_size": (_INT64, [_INT64, _INT64]),
    "lorikeet_norm": (None, [_INT32, _POINTER, _POINTER, _FLOAT, _INT64, _POINTER]),
    "lorikeet_rotate": (None, [_INT32, _POINTER, _POINTER, _POINTER, _INT64]),
    "lorikeet_attend": (None, [_INT32, _POINTER, _POINTER]),
    "lorikeet_shrink": (
        None,
        [_INT32, _POINTER, _INT32, _POINTER, _INT64, _INT64, _INT64, _INT64, _FLOAT, _POINTER, _INT64],
    ),
    "lorikeet_expand": (None, [_INT32, _POINTER, _INT32, _INT64, _INT64, _INT64, _POINTER, _POINTER]),
    "lorikeet_gate": (None, [_INT32, _POINTER, _INT64, _INT32, _FLOAT, _POINTER]),
}


class NativeLibrary:
    """The functions of one shared object, with their types.

    A path is the kernels' code for one set of processor instructions. all_paths: the names of the paths that this
    processor can run, the slowest first. paths: the part of all_paths that is in use.
    """

    def __init__(self, path: Path) -> None:
        """Load the shared object at path.

        Raises OSError: when the file is missing or does not load.
        """
        self.functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.functions, name)
            function.restype, function.argtypes = result, arguments
        self.digest: str = self.functions.lorikeet_digest().decode()
        count = self.functions.lorikeet_num_paths()
        self.all_paths: tuple[str, ...] = tuple(self.functions.lorikeet_path_name(i).decode() for i in range(count))
        self.paths = self.all_paths

    def use_up_to(self, path: str | None) -> None:
        """Use the paths up to this one, leaving the faster ones unused; None: use all.

        Raises ValueError: when there is no path of this name.
        """
        self.paths = self.all_paths if path is None else self.all_paths[: self.all_paths.index(path) + 1]
        self.functions.lorikeet_limit_paths(len(self.paths))


def load(path: Path) -> NativeLibrary | None:
    """Return the library in a file; None, after one line in the log, when it does not load."""
    try:
        return NativeLibrary(path)
    except (OSError, AttributeError) as error:
        log.warning("no native kernels, so PyTorch's operations compute: %s", error)
        return None


@functools.cache
def installed() -> NativeLibrary | None:
    """Return the library that was built with this package, or None."""
    return load(LIBRARY)

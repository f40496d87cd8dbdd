"""`python -m kernels.compile`: every Triton kernel built for a GPU that need not be there, at the targets' shapes.

Operations return their launches for tensors that exist in shape only (`targets`); Triton compiles them for the named
architecture, and `cuobjdump`, which comes with Triton, reads registers, shared memory and stack off the result. A
kernel that needs a stack has spilled registers to memory. TRITON_INTERPRET must be unset: interpreted kernels cannot be
compiled.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu.launch import FUSE_MULTIPLY_ADD, Launch
from kernels.targets import TARGETS, launches

SM_90 = GPUTarget("cuda", 90, 32)
TYPE_NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
DIVISIBLE_BY_16 = [["tt.divisibility", 16]]  # what Triton finds out about arguments when it launches


class Resources(NamedTuple):
    """Resources of a compiled kernel: registers and bytes of stack per thread, bytes of shared memory per program."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def compile_launch(launch: Launch, target: GPUTarget = SM_90) -> triton.compiler.CompiledKernel:
    """Compile the kernel as a launch with these arguments would.

    target: the GPU that the kernel is compiled for.

    Raises the errors of Triton: when the kernel does not compile.
    """
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], object] = {}
    attributes: dict[tuple[int, ...], object] = {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        specialized = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (specialized and isinstance(value, int) and value == 1):
            signature[parameter.name] = "constexpr"
            constants[index,] = value
        elif isinstance(value, Tensor):
            signature[parameter.name] = f"*{TYPE_NAMES[value.dtype]}"
            if specialized and not parameter.do_not_specialize_on_alignment:
                attributes[index,] = DIVISIBLE_BY_16
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32" if abs(int(value)) < 1 << 31 else "i64"
            if specialized and int(value) % 16 == 0:
                attributes[index,] = DIVISIBLE_BY_16
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "enable_fp_fusion": FUSE_MULTIPLY_ADD,
    }
    return triton.compile(source, target=target, options=options)


def resources(compiled: triton.compiler.CompiledKernel) -> Resources:
    """Return the registers, stack and shared memory that the compiled kernel takes, by `cuobjdump`."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        listing = subprocess.run(
            [tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) ", listing)
    assert found is not None, listing
    return Resources(int(found[1]), int(found[2]), compiled.metadata.shared)


def compile_all(names: list[str], only: list[str]) -> Iterator[tuple[str, Launch, Resources]]:
    """Compile the launches of the named targets whose label matches one of the regular expressions in `only`.

    Yields (label, launch, resources) of each.
    """
    for target in TARGETS:
        if target.name in names:
            for name, launch in launches(target):
                label = f"{target.name}: {name}"
                if any(re.search(pattern, label) for pattern in only):
                    yield label, launch, resources(compile_launch(launch))


def main() -> None:
    """Print the resources that each kernel of the chosen targets takes when it is compiled."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m kernels.compile", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--only", nargs="+", default=[""], metavar="REGEX", help="kernels with this in the name")
    options = parser.parse_args()
    chosen = options.targets or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no target is called {', '.join(sorted(unknown))}")
    print(f"compiled by Triton {triton.__version__} for sm_{SM_90.arch}\n")
    print("| kernel | warps | stages | registers | stack bytes | shared KiB |")
    print("|---|---|---|---|---|---|")
    for label, launch, used in compile_all(chosen, options.only):
        fields = launch.num_warps, launch.num_stages, used.registers, used.stack_bytes, used.shared_bytes // 1024
        print(f"| {label} | {' | '.join(map(str, fields))} |", flush=True)


if __name__ == "__main__":
    main()

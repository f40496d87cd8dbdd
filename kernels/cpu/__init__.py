"""Kernels of our own for CPUs, in C++, each beside its reference in PyTorch.

    build      compiles `native/` to a shared object: when the wheel is built, never on the user's machine
    library    loads it by ctypes, and says whether it is there
    matrix     frozen matrices of 8-bit and 4-bit integers, and of the blocks of GGUF files
    linear     products with these matrices
    decoder    a decoder's whole step in one call

- One result. A row's bits depend on that row alone: not on the other rows, the number of threads or the processor. All
  paths (`native/processor.cpp`) add in one order, and tests compare them bit by bit.
- Threads. `native/pool.h`: a call never waits for a thread whose processor was taken away.
"""

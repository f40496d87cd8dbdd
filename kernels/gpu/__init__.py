"""The operations of a decoder step in Triton, for GPUs and, in fp32 and fp16, for Triton's interpreter on a CPU.

No operation waits for the device, allocates what outlives it, or reads on the host what lies on the device: all of them
may be captured in a CUDA graph. Grids follow shapes, never contents, so a replay is right for any contents.

Kernels are compiled once for a model's shapes: what changes from step to step, numbers of rows and the alignment of
integers in memory, is kept out of what Triton specializes them for.

Bits: the result of an operation for a row depends on that row, its adapter, its cache and on shapes that are fixed for
an engine. It never depends on the other rows of the batch, but for one thing: the result of an adapter depends on
whether the batch has few rows (`lora`).
"""

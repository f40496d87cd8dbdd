"""The kernels' benchmark: every figure beside the least that its bytes and operations can take on the same GPU.

floors   how many bytes and operations an operation needs, and what that takes
clock    the time of work on a GPU, its bandwidth and its rate of products; no time in a dry run
shapes   the model whose shapes are measured
lora, layer   what is measured, each case with its check against the reference; paged: sequences in a cache
questions   what `kernels.tune` tries
cpu_linear   a program of its own: products with frozen matrices on a CPU, beside PyTorch's
"""

"""A step on a GPU, with the operations of `kernels.gpu`.

accelerator   what is used of a GPU beside arithmetic: streams, events, graphs, memory; nvidia, in_order: two kinds
transfers     small tensors there and back, through pinned memory
metadata      a step's integers: their places in one buffer, and its one copy to the device
fill          from a plan to these integers
attention     the paged cache, and one step's attention over it; norm: a norm's weight
adapters      what is in which slot, as kernels find it; copies: how it gets there beside running steps
lora          the adapters of one step
graphs        which steps are replayed from which captured graph
sampling      tokens from logits
memory        who gets how much of it, from one profiled step (profile)
path, setup   all of these together

Bits. Attention depends on the row and its context alone, an adapter's delta on the row, its adapter and whether the
batch has few rows: neighbors change no bit of them, as tests of these kernels show. The frozen matrices' products
depend on the number of rows as well, since cuBLAS chooses its kernel, and with it the order of a sum, by that. So a
greedy text that is decoded within one bucket has the same bits whoever decodes beside it, wherever its row is, and so
has a step with chunks of prompts that is replayed from one graph, whoever else is in it; shown on an H100 and with
interpreted kernels. Between buckets, and with prompts cut elsewhere, texts agree up to rounding.
"""

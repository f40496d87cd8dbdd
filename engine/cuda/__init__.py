"""A step on a GPU, with the operations of `kernels.gpu`.

accelerator   what is used of a GPU beside arithmetic: streams, events, graphs, memory; nvidia, in_order: two kinds
transfers     small tensors there and back, through pinned memory
metadata      a step's integers: their places in one buffer, and its one copy to the device
fill          from a plan to these integers
attention     the paged cache, and one step's attention over it; norm: a norm's weight
adapters      what is in which slot, as kernels find it; copies: how it gets there beside running steps
lora          the adapters of one step
graphs        which decodes are replayed from which captured graph
sampling      tokens from logits
memory        who gets how much of it, from one profiled step (profile)
path, setup   all of these together

Bits. What a row gets depends on the row, its adapter, its context and the number of rows that matrices are multiplied
with; on the contents of other rows it never does. An adapter's delta and attention do not depend on that number either,
so neighbors change no bit of them; the frozen matrices' products do, since cuBLAS chooses its kernel, and with it the
order of a sum, by the number of rows. So a greedy text that is decoded within one bucket has the same bits whoever
decodes beside it. Between buckets, beside chunks of prompts, and with prompts cut elsewhere, texts agree up to
rounding.
"""

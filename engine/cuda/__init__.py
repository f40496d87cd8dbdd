"""A step on a GPU, with the operations of `kernels.gpu`.

    accelerator   what is used of a GPU beside arithmetic: streams, events, graphs, memory; nvidia, in_order: two kinds
    transfers     small tensors there and back, through pinned memory
    metadata      a step's integers: their places in one buffer, and its one copy to the device
    fill          from a plan to these integers
    attention     the paged cache, in 8 bits too, and one step's attention over it; norm: a norm's weight
    adapters      what is in which slot, as kernels find it; copies: how it gets there beside running steps
    lora          the adapters of one step
    quantized     products with a checkpoint's matrices of few bits
    graphs        which steps are replayed from which captured graph
    sampling      tokens from logits
    memory        the division of a GPU's memory, from one profiled step (profile)
    path, setup   all of these together

- A step. All of its integers lie side by side in one pinned buffer and go over in one copy. Decodes alone, and chunks
  of prompts beside decodes, are padded to buckets of rows and of contexts and replayed from a graph, captured at
  start for each, with and without adapters; padding has no slot, no context and no adapter. Attention over chunks
  goes by a list of tiles, made with the integers, so its grid follows from the bucket too. More than 2,048 rows of
  prompts are launched one operation at a time, which takes a GPU longer than the host, and so is a step of which more
  rows are wanted than it has sequences: prompts' log-probabilities, mean pooling. Sampling is launched behind, and
  leaves its tokens where the next step finds them: a token that the host does not know yet goes over as its place
  among those (`kernels.gpu.fed_tokens`). Kept from the last step are integers of a plan that goes on from it, the
  graph that serves, and the adapters in its slots. A graph is captured in two halves, and between their replays an
  event is recorded, for which the host waits before the next plan; in it adapters' shrinks run beside the base's
  products on a stream of their own.
- Adapters. A slot's addresses, true ranks and scalings are entries of one table in device memory, written by the
  computing stream between steps. Weights are copied on a stream of their own, a layer at a time. A step that uses an
  adapter on its way waits layer by layer, or, replayed, for all of it; other steps wait for nothing, and memory that
  was given back is not written before the steps that read it are done (`copies` has the order of events).
- Memory. With the weights loaded, steps as large as any are computed for their peaks: prompts, decodes at the longest
  context beside prompts, and what the largest graph holds, for the memory that graphs keep. A tenth of the memory that
  the configured fraction leaves goes to adapters and the rest to the cache, or as configured. Out of memory at start
  names the settings to change.
- Bits. Attention depends on the row and its context alone, an adapter's delta on the row, its adapter and whether the
  batch has few rows: neighbors change no bit of them, as tests of these kernels show. The frozen matrices' products
  depend on the number of rows as well, since cuBLAS chooses its kernel, and with it the order of a sum, by that. So a
  greedy text that is decoded within one bucket has the same bits whoever decodes beside it, wherever its row is, and
  so has a step with chunks of prompts that is replayed from one graph, whoever else is in it; shown on an H100 and
  with interpreted kernels. Between buckets, and with prompts cut elsewhere, texts agree up to rounding.
"""

"""A step on a CPU.

    batch       a plan's tokens, positions and masks
    attention   the paged cache, and one step's attention over it
    tables      adapters side by side, as batched products want them
    lora        the adapters of one step
    quantization   the number format of products with frozen matrices
    matrices    frozen matrices in that format, of weights or of a GGUF file's blocks
    kept        these matrices in a file beside the model, for later starts
    quality     what that format changes of a model's predictions
    path        batch, attention and lora together: a plan to hidden states
    native      a plan to hidden states by the native kernels, for products in small integers

With products in small integers a step is one native call, which has a cache of its own (`kernels.cpu.decoder`) and
reads adapters where they lie. All other engines compute by `path`, and so do those of models with experts, whose
products in small integers are one native call for each group of a layer, and adapters on experts another one:

- Cache. Per layer `[2, kv_heads, slots, head_dim]`, slot = block * 16 + offset. Decode gathers whole blocks and
  multiplies in batches; prefill attends per chunk over its cached prefix.
- Adapters. One batched product per group of projections serves all adapters of equal ranks, over a table of them: in
  fp32 for decodes, in the engine's dtype for chunks of prompts, so a 16-bit engine has both. Decodes go in the order
  of their table's rows, so that nothing is gathered, and while they stay the same so does everything prepared for
  them. An adapter is copied to a row of a table when a step first uses it; the loading thread has touched the row's
  memory before. Tables are bounded by what slots can hold: in bf16 they take up to three times the adapters' own
  bytes. A batch without adapters runs no LoRA operation.
"""

"""The operations of a decoder step, each beside its fp32 reference. They know tensors and nothing of requests.

On a CPU the modules of this package itself compute, with PyTorch's operations. On a GPU those of `kernels.gpu` do, in
Triton; they are the only ones that import it, so this package loads where Triton does not exist. `kernels.cpu` has
kernels for CPUs in C++, for engines that are asked for quantized products, whose whole step is `kernels.cpu.decoder`.

| operation | CPU | GPU |
|---|---|---|
| adapters of many requests | `lora.add_batched_lora_` | `gpu.lora.Shrink`, `expand_`, `expand_and_silu_mul` |
| attention over the cache | `attention.decode_attention`, `prefill_attention` | `gpu.attention.paged_attention_` |
| rotation and cache write | `rope.rope`, `kv_cache.write_kv` | `gpu.rope_kv.rope_and_write_kv_` |
| RMS norm | `norm.RmsNorm` | `gpu.norm.rms_norm`, `add_rms_norm_` |
| linear attention | `linear_attention.gated_delta`, `decayed_sum` | none |
| gated activation | `activation.silu_mul`, `gelu_mul` | `gpu.activation.silu_mul`, `gelu_mul` |
| tokens of the step before | the host knows them | `gpu.fed_tokens.fed_tokens` |
| choosing tokens | `sampling.most_likely`, `sample` | `gpu.sampling.sample` |
| penalties, logit_bias | `penalties.penalize_repetition_` | `gpu.penalties.penalize_` |
| frozen matrices | `linear.Linear` | the same: cuBLAS |
| frozen matrices of small integers | `cpu.linear.NativeLinear` | `gpu.quantized.int4.int4_linear_` |
| frozen matrices in FP8 | none | `gpu.quantized.float8.float8_linear_`, `quantize` |
"""

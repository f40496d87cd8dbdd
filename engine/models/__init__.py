"""Decoders by architecture, their weights and positions. One file serves the whole Llama family.

`packed` reads checkpoints that hold matrices in few bits, `gguf` reads files of blocks, `general` and `encoder` hold
models that transformers computes.
"""

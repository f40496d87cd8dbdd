"""Decoders by architecture, their weights and positions. One file serves the whole Llama family.

`packed` reads checkpoints that hold matrices in few bits, `gguf` files of blocks, `general` what transformers computes.
"""

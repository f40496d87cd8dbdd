"""Checkpoints that hold matrices in few bits, from the folders that tools leave on the hub.

    matrices    a matrix of FP8 numbers or of integers with its scales, and the numbers that it stands for
    layouts     the orders in which tools pack integers
    files       tensors by name over all files of a folder, matrices put together of theirs
    blocks      4-bit integers as the blocks of the native kernels, without a second rounding

`engine.config.quantized` reads the config that tells which of these a folder has.
"""

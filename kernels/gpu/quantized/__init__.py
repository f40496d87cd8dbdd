"""Products with frozen matrices of few bits on a GPU (`kernels.linear.Linear`'s calls).

    float8    matrices in e4m3, rows of inputs as they are or rounded to e4m3 beside them
    int4      matrices of 4-bit integers, inputs as they are
    sums      splits of a product's inputs, added in their order

A matrix is the first factor of a tile's product and rows are the second one: few rows then make few columns of a tile,
where matrix units want 64 of the first, and a matrix goes from memory to registers.
"""

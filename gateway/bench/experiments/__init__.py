"""The cost of experiments, measured: `python -m gateway.bench.experiments` and the programs below.

path         the processor time that experiments add to a request, in process
tables       `python -m gateway.bench.experiments.tables`: large sums, and how far they are behind the ledger
votes        `python -m gateway.bench.experiments.votes`: feedback in batches, over HTTP to one gateway
"""

"""The cost of experiments, measured: `python -m gateway.bench.experiments` and the programs below.

path         what a request has more, in process
tables       `python -m gateway.bench.experiments.tables`: large sums, and how far they are behind the ledger
votes        `python -m gateway.bench.experiments.votes`: feedback in batches, over HTTP to one gateway
"""

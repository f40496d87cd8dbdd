"""`python -m gateway.bench.balance`: policies that choose among replicas, side by side in simulated time.

model        a pool of replicas: batches, adapter slots, loads
policies     ours, and those of other routers
references   the best that a placement or a cache can do
compare      one row of the table
"""

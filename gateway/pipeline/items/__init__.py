"""The items of one prompt, as they come from the replicas of a pool.

attempts  one replica after the other, until one answers
hedged    two replicas side by side, where the first token of one is late
begun     the first item, waited for within a bound
timed     the time that the items took
"""

"""The items of one prompt, as they come from the replicas of a pool.

attempts    one replica after the other, until one answers
hedged      two replicas side by side, where the first token of one is late
cold_start  the wait for a pool's first replica
first_item  the first item, waited for within a bound
collecting  all items before the reply begins, so that the answer can be checked
timing      the time that the items took
"""

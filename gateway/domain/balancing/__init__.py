"""The choice of the replica that takes a request, and a tenant's weight over all replicas. Pure, without I/O.

    replica     the data: a snapshot of a replica, and the needs of a request
    balancer    the choice
    state       one replica as one gateway knows it
    orders      each adapter's order of preference (rendezvous hashing)
    prefixes    beginnings of prompts: their keys, and where they were sent
    service     what tenants used where, for the engines' counters: why a weight holds over the pool, and its bound

One balancer for each pool of a gateway. It is fed with heartbeats and told what was sent and what has ended:

    balancer = Balancer(seed=secrets.randbits(32))
    balancer.add("replica-1")                                          # when the pool's membership changes
    balancer.update(ReplicaLoad(id="replica-1", running=3, ...), now_s)  # with each heartbeat
    balancer.update(ReplicaLoad(id="replica-1", silent=True), now_s)   # when its connection is lost

    prefixes = prefix_keys(token_ids, tenant + key)
    asked = Asked(adapter=key, rank=16, prefixes=prefixes, prompt_tokens=len(token_ids), tenant=tenant)
    tried: set[str] = set()
    while (replica_id := balancer.pick(asked, tried)) is not None:
        balancer.taken(replica_id, asked)
        try:
            ...                                                        # send it there
        finally:
            balancer.given(replica_id, asked)
        tried.add(replica_id)                                          # where it failed before its first token

Beside it one `PoolService` for each pool of a gateway: what streams used goes in before each heartbeat and at their
ends; what it returns goes out with the heartbeat to each replica (`gateway.domain.balancing.service` has the lines).
"""

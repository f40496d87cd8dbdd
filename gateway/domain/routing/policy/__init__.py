"""Routing policies: a document that says which model answers a request, and the plan that it makes for one request.

Pure: no I/O, no clock, no randomness. `explain` and the run of a request walk the same document with the same facts, so
that both see the same plan.

    document    the tree of nodes and its bounds
    checks      reads documents, and refuses wrong ones by the path of the node
    facts       everything about one request that a walk may depend on
    conditions  conditions on requests
    plan        what is tried, on which errors what follows, and the reasons
    walk        from a document and facts to a plan
    answers     checks of answers, after which another model may be asked
"""

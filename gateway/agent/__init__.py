"""The agent of a host: starts, watches and ends engines as the rows of pools say. One agent per host holds its lease.

    agent        the loop that plans, prepares and tends; lease: the right to do so
    tending      which step is due for each replica of this host, by the state of its row
    steps        what is done then; commands: how an engine's process is started
    follower     the connection to one engine: is it there, does it answer well, what does it run
    launcher     what runs engines (`Launcher`); local: as processes of this host; ray: on the nodes of a Ray cluster
    listeners    where an engine of this machine listens, and whom it lets in
    models       which models are prepared; preparation: fetched, checked, measured; model: the program that does it
    servers      servers of other makers, which it starts as well
    hardware     what this host is and has
    run          the process

An agent may die at any time: its engines serve on, and the next agent of the host adopts them. Two agents never run
one replica: each start has a generation that only the holder of the host's lease can take, and a lock that the engine's
process holds for as long as it lives. While the database is away nothing is started and nothing is stopped.

Knows nothing of requests, tenants and HTTP.
"""

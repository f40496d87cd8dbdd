"""Engines on the nodes of a Ray cluster: Ray finds a machine for each replica, and no token passes through it.

    launcher     `Launcher` of the agent, which speaks to one child, the driver
    bridge       the driver's process, and the lines between it and the agent
    driver       the only process of ours that is a client of Ray; messages: what it is told, and what it says
    supervisor   the actor beside each engine, which starts it as a process of its node
    resources    what an engine takes of a node in Ray's words, and why it has none yet

**One host is the whole cluster.** An agent with LORIKEET_PLACEMENT=ray has one row in the table of hosts, one lease and
one key pair, and its replicas have that host, whatever nodes they are on. A host for each node would put our planner
above Ray's: a node that the autoscaler is still to bring cannot be planned for, and two planners would move replicas
against each other. So our planner says how many replicas the cluster runs, and Ray says where.

**Who owns what.** A replica's row has its generation and address, as everywhere. A detached actor of Ray,
`replica:<id>`, keeps the processors, the memory and the GPU of one replica on a node, and starts its engine there with
`LocalLauncher`: the same lock files in the node's data folder, the same process in a session of its own. Ray starts the
actor anew where its node is lost. The actor decides the address, since only it knows the node and the free ports; the
agent writes the address into the row before the process starts (`Launcher.start`). Each node has a key pair of its own
in its data folder, whose public half the row names; the agent hands each node the list of keys that may connect.

**What may die.** An engine is no child of its actor (`LocalLauncher`, apart), so it outlives actor, node manager and
head. An actor that comes back on the node finds the lock held, and takes the engine for its own: same generation, no
second process. A head that comes back without its memory has no actors: nodes that join it are looked at once, and an
engine that is found there gets an actor again. While Ray is away, and for engines on nodes that it has lost, heartbeats
decide alone: an engine that answers serves on; one that does not is started elsewhere as the next generation, once Ray
is there. Should the former one show up again, the agent ends it, for it is not the generation of the row.

**Why a process between agent and Ray.** A client of Ray is ended by Ray's library when the head is away for a minute,
and some of its calls do not return before. The agent has to live through that.

Knows nothing of rows, pools and requests. Only `driver` and `supervisor` need the package `ray`.
"""

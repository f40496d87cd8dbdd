"""Servers of other makers that an agent starts, such as llama.cpp's: their programs, commands, adapters and health.

    programs     which of them this host can start
    commands     how one is started: its command, its environment, its socket and its key
    adapters     the adapters of llama.cpp's servers, as files that they are started with
    footprint    the memory that one takes
    follower     the agent's look at one that runs: is it there, does it answer well, has it anything to do
    llama_main   llama.cpp's server out of a Python wheel

A server listens on a Unix socket in a folder that nobody else may enter, and asks for a key of its own, which is made
for each start and lies beside the socket. Knows nothing of rows.
"""

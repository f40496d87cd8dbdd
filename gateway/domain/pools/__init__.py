"""Pure decisions about pools: their states, the room on a host, and what is to be started, drained and stopped."""

"""Experiments that run: the secrets of their units, what gateways note of requests, and who counts it.

`keys` gives the secret of a project, `notes` writes what requests leave in memory each second. Assignment itself is in
`gateway.routing.experiments`, and pure in `gateway.domain.experiments`.
"""

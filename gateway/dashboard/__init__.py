"""Serves the dashboard's static files. Knows nothing about their contents: they use the admin API like any client.

`files` knows which path is a file and which a view (every other path is the one page, so that views have URLs),
`routes` the headers. The Content-Security-Policy allows only scripts and styles from this server, and none inline; so
there is no import map, modules import by relative paths, and Preact is the build for classic scripts. Browsers ask
about files on each load, and files are sent only when they changed.
"""

from gateway.dashboard.routes import dashboard

__all__ = ["dashboard"]

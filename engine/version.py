"""The product's version, which the wheel, `/version`, backups and the fingerprints of engines name.

The number stands in the code, since a checkout that runs uninstalled has no metadata. Knows nothing else.
"""

VERSION = "0.1.0"

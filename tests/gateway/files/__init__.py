"""Files and uploads."""

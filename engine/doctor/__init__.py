"""A report of what this machine offers to an engine, the way of computing that it would choose, and how fast that is.

`python -m engine.doctor` prints one JSON object, a `report.Report`, which `lorikeet doctor` shows. Loads no model.
"""

"""What this machine offers to an engine, which way of computing an engine would choose here, and how fast that is.

`python -m engine.doctor` prints one JSON object, a `report.Report`, which `lorikeet doctor` shows. Loads no model.
"""

"""The parts that several endpoints share."""

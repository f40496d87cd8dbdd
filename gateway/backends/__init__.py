"""What makes tokens, behind one interface: our engine, and whatever else will speak it."""

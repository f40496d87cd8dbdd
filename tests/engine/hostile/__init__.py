"""Damaged and hostile model folders that the engine has to refuse in words."""

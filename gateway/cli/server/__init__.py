"""Commands about processes of this machine."""

"""Files that strangers might send, and how to send many of them."""

"""Parts of a decoder layer that hold tables or weights of their own."""

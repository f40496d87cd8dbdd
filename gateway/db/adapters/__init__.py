"""SQL of adapters: versions, imports, names and shares, the store's contents, and the memory of the watched folder."""

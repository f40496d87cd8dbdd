"""`lorikeet chat`: a client as any other, over HTTP."""

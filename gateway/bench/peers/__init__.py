"""Other gateways beside ours: how each is started (`running`), and the server that all of them ask (`upstream`)."""

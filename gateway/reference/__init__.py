"""The OpenAPI document of every route, and the page made of the document.

`openapi` makes the OpenAPI 3.1 document of what routes declare about themselves (`gateway.http.shape`,
`gateway.admin.access`) and of nothing else; `page` makes `/docs` of the document alone, without scripts and with
nothing from elsewhere. Litestar's own generator would describe what handlers' signatures say; ours read raw bodies,
so that refusals have OpenAI's words. The guard reads the same declarations as the document, so neither can say what
the other does not do. `tests/gateway/test_schemathesis.py` holds every operation but `suspend_organization`, which
would shut the test out, to the document with generated requests. Both texts are made when they are first
asked for, and are the same for everybody, except for the reader's own base URL in the page's examples.
"""

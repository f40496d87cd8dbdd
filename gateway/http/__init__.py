"""The HTTP server and everything around a request that is not about one API. It knows no field of OpenAI's.

Bounds on what strangers send hold before any handler runs:

    protocol      one class over uvicorn's protocol, with what a client may do before and while a request is handled:
        cap         open connections of an address (429), and of all, so that files can always be opened (503)
        bounds      seconds and bytes of each state of a connection: a head that does not end (408, 431), a body that
                    does not arrive (408; the framework bounds its size, 413), a refused body, of which up to 32 MiB
                    are read and dropped for 10 s so that the client sees why, silence, and a reply that is not read
        framing     what precedes a body: 128 headers, 64 KiB with the URL (431); heads that a proxy may read in another
                    way (400); 16 KiB around the chunks of a body beyond what its content needs, trailers, which are
                    dropped, included; offers to speak another protocol, which are ignored
        replies     no chunks for HTTP/1.0; no further request after a body that was refused before it was asked for
        connection  all of it for one connection. After its last reply it is open for reading until the rest of a
                    refused body has come, or its bound: closed with unread bytes, it would be reset
    json_work     how much a body holds, counted on its bytes before anything is decoded
    fields        the depth of schemas and of arguments of calls, which others walk through

A client that does not read makes its stream wait once its own buffers, 64 KiB in the kernel and 16 KiB of the
connection, are full. After LORIKEET_UNREAD_SECONDS the connection is cut off and its work is aborted. Deltas that the
engine sends meanwhile are joined and encoded (`gateway.backends.engine.backlog`); beyond 128 KiB the request is aborted
before that.

A gateway that stops lets running requests finish. In the last two seconds of the drain (`server`) it cuts off what
engines still compute: its readers get `ShuttingDown`, and usage is counted as after a client that leaves. Then the
gateway answers requests that have no reply yet, and closes connections. A request with an Idempotency-Key is then
kept as one that failed.
"""

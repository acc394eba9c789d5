"""The pool over HTTP: a control plane, and workers in any language that poll.

    access     who asks, and what they may: bearer secrets, roles
    limits     how much, how often, for how long
    bodies     what is sent, as types: they judge it, and its schemas are theirs
    tokens     what a worker is and has, signed
    jobs, looking, events, workers   what each call does: a line or two of the node's own
    routes     one table: method, path, role, body, answer, errors
    openapi    the table as OpenAPI 3.1
    app        the ASGI application: a request --table--> a call --> JSON, or a problem
    server     uvicorn, which cuts who is slow

Nothing is decided here: who looks is told what `pool/ops` reads, who acts does what a node does.
"""

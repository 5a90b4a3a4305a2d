"""The server process: HTTP dialects, validation, the registry of requests, streams and aborts.

Knows texts, ids and clients; does not know tensors, pages or batches. Invariant: everything a client sends is validated here
before it is queued, and each accepted request ends for its client exactly once.
"""

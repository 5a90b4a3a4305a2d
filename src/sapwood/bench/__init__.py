"""Measurements: kernels, one batch in process, offline throughput, and a load generator for servers.

Owns what is measured and how; the commands are in `cli`. Invariant: compared things run in one process, alternating, and what is
reported are medians over the repeats with their spread.
"""

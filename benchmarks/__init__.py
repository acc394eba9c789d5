"""Benchmarks: `python -m benchmarks.throughput`; see README.md here for how to read the figures."""

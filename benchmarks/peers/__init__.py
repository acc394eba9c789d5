"""This library beside others: `python -m benchmarks.peers`; see README.md one folder up."""

"""For those who work on this repository: what its documents are made with."""

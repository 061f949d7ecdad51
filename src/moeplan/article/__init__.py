"""The throughput article, to its last printed digit: its own units, dimensions and quirks."""

"""The throughput article (seed 004), to its last printed digit: its own units, dimensions and quirks."""

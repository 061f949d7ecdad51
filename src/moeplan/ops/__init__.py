"""The cost of one operator: work over peaks, with the efficiency of its kernel."""

"""Inference engines: what they accept (rules, low) and how they are started (emit, on top)."""

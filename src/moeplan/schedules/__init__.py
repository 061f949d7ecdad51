"""Stage times -> layer time: what overlaps with what."""

"""How each engine is started."""

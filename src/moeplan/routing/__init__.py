"""How tokens meet experts: slots per rank, rows per slot, the fullest rank."""

"""What each engine accepts, how it divides memory, what it adds: data with versions."""

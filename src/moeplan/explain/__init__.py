"""Why: what is missing when nothing is feasible, what a step is made of."""

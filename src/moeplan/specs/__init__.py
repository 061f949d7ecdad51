"""What things are: GPUs, NICs, clusters, models, deployments. No formulas of time."""

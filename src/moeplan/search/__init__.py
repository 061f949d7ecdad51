"""All valid deployments, the best under the constraints, and what is missing when there is none."""

"""Measure kernels on a CUDA machine into tables that the predictor reads; every device library is imported when run."""

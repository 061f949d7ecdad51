"""Forms: seconds of a kernel from its shape, a chip's peaks and a few physical parameters; one file per kernel."""

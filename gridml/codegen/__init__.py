"""Machine code from Python: the kernels of placement, and the stages of users' programs."""

"""How launches are chosen on a GPU, for `python -m orchestra.kernels.tune`: what is tried, timed and kept."""

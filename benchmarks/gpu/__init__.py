"""Kernels and engine on a GPU, measured by what the device can do: parts of ``benchmarks/gpu_check.py``."""

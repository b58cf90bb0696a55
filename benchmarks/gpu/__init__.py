"""What is checked and measured on a GPU, a part to a module; `benchmarks/gpu_check.py` runs them."""

"""Kernels for GPUs, written in Triton; what runs there under its interpreter runs anywhere."""

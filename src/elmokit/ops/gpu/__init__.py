"""Inference on a CUDA GPU: Triton kernels, one kernel in CUDA C++ compiled by NVRTC, CUDA graphs."""

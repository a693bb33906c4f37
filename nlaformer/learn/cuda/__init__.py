"""The fused training step on CUDA."""

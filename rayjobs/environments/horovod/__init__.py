"""Horovod for an environment's PyTorch: built once, stored and installed."""

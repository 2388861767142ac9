"""Horovod for an environment's PyTorch: built once, kept, installed."""

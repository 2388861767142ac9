"""Provides ``import azureml`` in drivers and in jobs: the finder, its names, the exceptions."""

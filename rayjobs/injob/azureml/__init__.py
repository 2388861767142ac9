"""What answers ``import azureml`` in drivers and in jobs: a finder, its names, the exceptions."""

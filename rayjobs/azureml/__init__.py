"""Runs and checks existing Azure ML programs, and answers their ``import azureml``.

`rayjobs azureml run driver.py`, or ``import rayjobs.azureml.install`` as the first line of a
program. The finder and its table are in `rayjobs.injob.azureml`, since jobs need them as well.
"""

from azureml.core.run import Run

submitted_run = Run.get_context()
submitted_run.log(name="message", value="Hello from run!")

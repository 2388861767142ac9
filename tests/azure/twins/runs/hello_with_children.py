from azureml.core.run import Run

run = Run.get_context()
for count, child in enumerate(run.create_children(count=3)):
    child.log(name="Hello from child run", value=count)
    child.complete()

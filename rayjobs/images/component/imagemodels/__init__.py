"""Image classifiers inside a job: image directories, loading, training, scoring."""

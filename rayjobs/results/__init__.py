"""What runs leave behind, read: values to compare jobs by, logs line by line with their times."""

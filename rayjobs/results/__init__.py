"""What runs leave behind, read: values to list, sort and compare jobs by."""

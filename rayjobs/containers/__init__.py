"""Container images on a node: fetched once, unpacked once, then entered by the ranks themselves."""

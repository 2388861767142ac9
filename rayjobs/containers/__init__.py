"""Container images on a node: fetches and unpacks each once; ranks then enter it themselves."""

"""The node agent: what happens on a node for the attempts that are there."""

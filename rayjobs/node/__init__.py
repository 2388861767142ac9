"""The node agent: all work on one node for the attempts there."""

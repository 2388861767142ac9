"""The messages that the parts of a target exchange with each other and with Ray."""

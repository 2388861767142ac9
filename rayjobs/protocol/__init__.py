"""What the parts of a target say to each other, and to Ray."""

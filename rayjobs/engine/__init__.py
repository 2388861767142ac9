"""The target actor: it decides, starts attempts, and follows them to their ends."""

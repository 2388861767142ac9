"""What several tests use: targets, nodes, images, packages, and waiting for things."""

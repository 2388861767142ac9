"""From what a user types to a durable job."""

"""Tests of the client side of targets."""

"""A script under rayjobs behaves as `python script.py` does, forked or in a fresh interpreter."""

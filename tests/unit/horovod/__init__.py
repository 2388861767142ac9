"""Tests of Horovod: checks at submit and on nodes, and builds."""

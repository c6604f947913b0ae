"""Batches from Python: the file that one is made from, its submit, its interrupt and its resume."""

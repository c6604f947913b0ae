"""The processes: which run, when, on which queue. They decide nothing about a turn."""

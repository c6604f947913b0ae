"""No test in this folder touches a server, a file or a clock."""

from hypothesis import settings

settings.register_profile("pure", database=None, deadline=None, derandomize=True, max_examples=25)
settings.load_profile("pure")

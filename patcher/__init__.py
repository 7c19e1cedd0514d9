"""deepep-patch: says which known defects a DeepEP checkout has, mends them, and proves it."""

__version__ = "0.1.0"

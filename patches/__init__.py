"""The fixes, one module each: the docstring is the documentation, ``FIX.cases`` are the tests."""

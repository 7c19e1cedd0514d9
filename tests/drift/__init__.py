"""The sample checkout spelled otherwise: one module for each kind of drift."""

"""The sample's package: only its name matters."""

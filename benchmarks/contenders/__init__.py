"""The ways to copy that are compared, one module each; see `Contender`."""

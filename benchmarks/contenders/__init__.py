"""The ways to copy that are compared, see `Contender`."""

"""Who copies: one module each. A contender has a name and copies a case, telling what it cost; see `Contender`."""

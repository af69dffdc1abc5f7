"""Outside the trainer: one run from start to end, watched, explained, ended and resumed."""

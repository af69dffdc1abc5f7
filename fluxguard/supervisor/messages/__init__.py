"""What people are told of a run who do not look at it, and the sending of it."""

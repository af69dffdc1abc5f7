"""States and final weights: which are whole, which step each holds, which one is used. Nothing is unpickled."""

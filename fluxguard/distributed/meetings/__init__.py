"""How ranks come together: a meeting in their store, what is seen of who does not come, and the calls built on it."""

"""A model, its weights, its samples and its random numbers on several ranks."""

"""Numbers over all ranks: metrics, means, and one FID beside the training."""

"""Cost of tacit as ratios to a plain PyTorch network, measured in the same run."""

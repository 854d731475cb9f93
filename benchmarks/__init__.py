"""What tacit costs, as ratios to a plain PyTorch network in the same run."""

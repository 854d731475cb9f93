"""The paper's experiments, one file each: numbers are saved as JSON and drawn from there."""

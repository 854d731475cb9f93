"""The paper's experiments, one file each: compute writes JSON, figures are drawn from it."""

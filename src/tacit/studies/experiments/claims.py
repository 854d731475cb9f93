"""The claims of the paper."""

from __future__ import annotations

CLAIMS = {
    "regression-limit": "Gradient descent on the expected squared loss of a linear model converges "
    "to the minimiser closest to the prior in 2-Wasserstein distance.",
    "regression-interpolates": "All functions fit the data, and away from the data the prior is "
    "kept; with a KL regularizer they don't fit.",
    "ensemble-equivalence": "The trained distribution is that of an ensemble trained from draws of "
    "the prior.",
    "error-equals-variance-flow": "Under gradient flow the expected squared error equals the "
    "predictive variance at all times.",
    "error-equals-variance-sgd": "At every step of SGD the expected squared error equals the "
    "predictive variance; for a small enough learning rate the trace of the covariance never "
    "increases.",
    "classification-max-margin": "On separable data the mean, divided by log t, converges to the "
    "max-margin vector.",
    "classification-collapse": "The variance vanishes on the span of the support vectors; in the "
    "null space of the data the factor stays that of the prior.",
    "classification-generalized": "Without the assumption that the support vectors span the data, "
    "both results on classification hold for the projected distributions.",
    "w2-subspace": "The squared 2-Wasserstein distance is a sum over range and null space of the "
    "data.",
    "null-space-by-qr": "The trained factor spans the null space of the data, so its QR "
    "decomposition recovers that space.",
    "rank-scaling": "With S z scaled by the root of the rank, training doesn't depend on the rank.",
    "coordinate-check": "Features change more under muP than under the standard parametrization, "
    "and training is more stable across widths.",
    "lr-transfer": "Under muP the best learning rate is the same at every width, so that of a "
    "small network can be used; under the standard parametrization it falls. muP is better.",
    "single-sample": "One draw of the weights per step is enough if the learning rate is "
    "small enough; more steps or momentum close the gap; at a fixed rate more samples soon bring "
    "little.",
    "nll-overfitting": "In long training the NLL rises while the error does not; rescaling the "
    "mean or a temperature prevents this, the temperature also before the asymptote.",
    "in-distribution": "The test error is similar to a standard network's; the NLL is much better, "
    "and only temperature scaling and ensembles are calibrated as well.",
    "averaging": "It makes no difference whether log-probabilities, probabilities or logits are "
    "averaged.",
    "corruptions": "Under corruptions the error is smaller than that of all methods but ensembles; "
    "NLL and ECE are better than those of ensembles.",
    "cost": "A training step takes about the time of a plain network's and a tenth more memory; an "
    "ensemble of K takes K times as long.",
    "wide-gvi": "An explicit 2-Wasserstein regularizer is similar or worse at every strength.",
}
"""Name of a claim -> the claim in our words."""

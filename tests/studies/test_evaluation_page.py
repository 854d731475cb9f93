"""The summary of an evaluation, from numbers that are computed here."""

from types import SimpleNamespace

import torch

from tacit.integrations.files import Evaluation
from tacit.studies.evaluation_page import conclusions


def test_the_summary_of_a_classifier():
    targets = torch.tensor([0] * 60 + [1] * 40)
    predicted = torch.tensor([0] * 90 + [1] * 10)  # 70 of 100 are correct
    log_probs = torch.tensor([[0.8, 0.2], [0.2, 0.8]]).log()[predicted]
    numbers = {"mean_set_size": 1.25, "set_coverage_80": 0.84, "foreign": 0.03}
    text = conclusions(
        SimpleNamespace(classes=["no", "yes"]), Evaluation(numbers, 0.8, targets, log_probs)
    )
    error = 100 * (0.7 * 0.3 / 99) ** 0.5
    assert text == (
        f"The model predicts 70.0 ± {error:.1f} % of the 100 examples correctly, where the most "
        "frequent class alone would give 60.0 %. The sets for a probability of 80 % contain "
        "84.0 ± 3.7 % of the targets; on average they are 1.25 of 2 classes. 3.0 % of the "
        "examples are unlike the training data."
    )


def test_the_summary_of_a_regression():
    targets = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    mean = torch.tensor([1.0, 2.0, 3.0, 6.0])  # squared errors 0, 0, 0, 4
    numbers = {"mean_interval_width": 3.3, "interval_coverage_90": 0.75, "foreign": 0.0}
    text = conclusions(
        SimpleNamespace(classes=()),
        Evaluation(numbers, 0.9, targets, mean=mean, ranks=torch.rand(4)),
    )
    # The standard error of the mean square is 1, that of its root half as large.
    assert text.startswith(
        "The root mean squared error is 1 ± 0.5 over 4 examples, whose targets have a standard "
        "deviation of 1.12. The intervals for a probability of 90 % contain 75.0 ± 21.7 % of the "
        "targets; on average they are 3.3 wide."
    )

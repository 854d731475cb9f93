import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import tacit
from tacit import metrics
from tacit.likelihood.predictive import ClassPredictive


def predictions(size=60, classes=7):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(5, size, classes, generator=generator)
    labels = torch.randint(classes, (size,), generator=generator)
    labels[::2] = logits.mean(0).argmax(-1)[::2]
    return ClassPredictive(logits), labels


def test_batches_give_the_metrics_of_the_whole():
    prediction, labels = predictions()
    pieces = metrics.Streaming()
    for rows in torch.arange(60).split(7):
        part = prediction[rows]
        pieces.update(part.errors(labels[rows]), part.sums(labels[rows]))
    found, log_probs = pieces.compute(), prediction.log_probs
    expected = {
        "nll": metrics.nll(log_probs, labels),
        "accuracy": metrics.accuracy(log_probs, labels),
        "ece": metrics.ece(log_probs, labels),
        "adaptive_ece": metrics.ece(log_probs, labels, adaptive=True),
        "aurc": metrics.aurc(prediction.confidence, prediction.label == labels),
        "brier": metrics.brier(log_probs, labels),
        "top5": metrics.accuracy(log_probs, labels, 5),
        "classwise_ece": metrics.classwise_ece(log_probs, labels),
    }
    assert dict(found) == pytest.approx(expected)
    assert dict(prediction.scores(labels)) == pytest.approx(expected)


def work(rank, port, results):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    prediction, labels = predictions()
    rows = torch.arange(60)[rank * 20 :] if rank else torch.arange(20)  # 20 and 40 examples
    part, found = prediction[rows], []
    for limit in (1000, 30, 10):  # the second keeps the scores of one process only
        pieces = metrics.Streaming(limit)
        pieces.update(part.errors(labels[rows]), part.sums(labels[rows]), {"entropy": part.entropy})
        together = pieces.gather()
        found.append((dict(together.compute()), together.uncertainties["entropy"].tolist()))
    results[rank] = found
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_agree_with_one(unused_port):
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(work, (unused_port, results), nprocs=2)
        found = dict(results)
    prediction, labels = predictions()
    expected = dict(prediction.scores(labels))
    for rank in (0, 1):
        assert all(each[1] == pytest.approx(prediction.entropy.tolist()) for each in found[rank])
        exact, *binned = (each[0] for each in found[rank])
        assert exact == pytest.approx(expected)
        for each in binned:
            assert each == pytest.approx(expected, abs=2e-3)
            assert each["ece"] == pytest.approx(expected["ece"])


def test_one_process_has_nothing_to_gather():
    pieces = metrics.Streaming()
    pieces.update({"nll": torch.ones(2)})
    assert pieces.gather().compute() == {"nll": 1.0}


def test_a_table():
    found = metrics.Metrics(nll=0.25, accuracy=0.5)
    assert repr(found) == "nll       0.2500\naccuracy  0.5000"
    assert found.to_frame().to_dict("list") == {"metric": ["nll", "accuracy"], "value": [0.25, 0.5]}


def test_an_unknown_metric():
    with pytest.raises(KeyError, match="no metric 'acc'; available: nll, accuracy"):
        metrics.Metrics(nll=0.25, accuracy=0.5)["acc"]


def test_foreign_inputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(10 * torch.eye(2))
    found = tacit.evaluate(
        net, (x, net(x).argmax(-1)), foreign=0.01 * x, likelihood=tacit.Categorical(), batch_size=64
    )
    assert found["ood_auroc"] > 0.95
    assert found["ood_fpr95"] < 0.2
    assert found["ood_aupr"] > 0.95
    assert "ood_auroc_mutual_information" not in found  # a single function


def test_foreign_inputs_by_every_score():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    model = tacit.variational(nn.Linear(2, 2), {"": tacit.FullRank()})
    foreign = 1 + x.abs()
    for likelihood, first in ((tacit.Categorical(), "entropy"), (tacit.Gaussian(), "std")):
        labels = x[:, 0].gt(0).long()
        targets = labels if first == "entropy" else x
        seeded = generator.manual_seed(1)
        found = tacit.evaluate(
            model, (x, targets), foreign=foreign, likelihood=likelihood, batch_size=7,
            generator=seeded,
        )  # fmt: skip
        both = tacit.predict(
            model, torch.cat([x, foreign]), likelihood=likelihood, generator=seeded.manual_seed(1)
        )
        expected = {}
        for name in both.uncertainties:
            scores = both.uncertainty(name).reshape(120, -1).mean(1)
            suffix = "" if name == first else f"_{name}"
            if name != "aleatoric_std":  # the same for all inputs
                for metric in (metrics.auroc, metrics.fpr95, metrics.aupr):
                    expected[f"ood_{metric.__name__}{suffix}"] = metric(scores[:60], scores[60:])
        assert {k: v for k, v in found.items() if "ood" in k} == pytest.approx(expected, abs=1e-3)


def test_foreign_pixels_count_by_their_mean():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, 2, generator=generator)  # three labels of two classes per example
    data = x, x.argmax(-1)
    others = torch.cat([0 * x[:, :1], x[:, 1:]], 1)
    found = tacit.evaluate(nn.Identity(), data, foreign=others, likelihood=tacit.Categorical())
    inside, outside = (ClassPredictive(t[None]).entropy.mean(1) for t in (x, others))
    assert found["ood_auroc"] == pytest.approx(metrics.auroc(inside, outside))


def test_scores_that_are_the_same_for_all_inputs_separate_nothing():
    x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    found = tacit.evaluate(nn.Linear(1, 1), (x, x), foreign=x + 9, likelihood=tacit.Gaussian())
    kept = {name: value for name, value in found.items() if name.startswith("ood")}
    assert kept == {"ood_auroc": 0.5, "ood_fpr95": 1.0, "ood_aupr": 0.5}
    with pytest.raises(ValueError, match="auroc: some scores are NaN"):
        tacit.evaluate(nn.Identity(), (x[:, [0, 0]], 0 * x.long()), likelihood=tacit.Categorical(),
                       foreign=DataLoader([torch.tensor([float("nan")] * 2)]))  # fmt: skip


def test_uncertainties_are_not_metrics():
    pieces = metrics.Streaming()
    pieces.update({"nll": [1.0]}, uncertainties={"entropy": [0.5]})
    pieces.update({}, uncertainties={"entropy": [0.7, 0.1]})
    assert pieces.compute() == {"nll": 1.0}
    assert pieces.uncertainties["entropy"].tolist() == [0.5, 0.7, 0.1]


def test_foreign_inputs_by_mutual_information():
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    net = nn.Linear(2, 2, bias=False)
    model = tacit.variational(net, {"": tacit.FullRank()}, likelihood=tacit.Categorical())
    foreign = 20 * x  # the functions' logits differ more there
    found = tacit.evaluate(model, (x, x[:, 0].gt(0).long()), foreign=foreign)
    inside, outside = (tacit.predict(model, inputs, samples=200) for inputs in (x, foreign))
    expected = metrics.auroc(inside.mutual_information, outside.mutual_information)
    assert found["ood_auroc_mutual_information"] == pytest.approx(expected, abs=0.05)
    assert expected > 0.6


def test_evaluation_in_batches_agrees_with_all_predictions_at_once():
    torch.manual_seed(0)
    model = tacit.variational(nn.Linear(4, 3), rank=2, likelihood=tacit.Categorical())
    x, labels = torch.randn(50, 4), torch.arange(50) % 3
    generator = torch.Generator().manual_seed(1)
    found = tacit.evaluate(model, (x, labels), batch_size=7, chunk_size=5, generator=generator)
    expected = tacit.predict(model, x, generator=generator.manual_seed(1)).scores(labels)
    assert found == pytest.approx(dict(expected), rel=1e-5)
    assert model.training

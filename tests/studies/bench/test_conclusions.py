"""Sentences on made-up results whose winners, leads and p-values are computed here."""

import math
from dataclasses import replace

import pytest
from scipy import stats
from tiny_cells import FAKES, fake

from tacit.studies.bench import write_report
from tacit.studies.bench.conclusions import conclusions


def test_the_best_method_its_lead_and_its_significance():
    nll, corrupted, foreign = conclusions(FAKES)
    # All leads over swag are 0.1: the seeds move both methods alike.
    assert nll == (
        "NLL on test images is lowest with deep_ensemble, 0.198; the lead over swag is "
        "0.100 ± 0.000, significant."
    )
    assert corrupted.startswith("NLL on corrupted images is lowest with deep_ensemble, 0.397;")
    assert foreign.startswith(
        "AUROC of detection of foreign images is highest with deep_ensemble, 0.980; the lead "
        "over swag is 0.010"
    )


@pytest.mark.parametrize("spread", [0.001, 0.2])
def test_significance_is_that_of_a_paired_t_test(spread):
    worse = [0.5 + spread, 0.5 - spread, 0.5]
    results = [fake("swag", seed, nll) for seed, nll in enumerate(worse)]
    results += [fake("standard", seed, 0.4) for seed in range(3)]
    leads = [nll - 0.4 for nll in worse]
    p = stats.ttest_1samp(leads, 0).pvalue
    error = stats.sem(leads)
    expected = "significant" if p < 0.05 else "not significant"
    assert conclusions(results)[0].endswith(f"swag is 0.100 ± {error:.3f}, {expected}.")


def test_several_problems_are_counted():
    results = [*FAKES]
    for seed in range(3):
        for data, best in (("digits", 0.1), ("fashion_mnist", 0.25)):
            for method, nll in (("swag", 0.3), ("standard", best)):
                found = fake(method, seed, nll)
                results.append({**found, "cell": replace(found["cell"], data=data)})
    assert conclusions(results)[0] == (
        "NLL on test images is lowest with standard on 2 of 3 problems and deep_ensemble on 1; "
        "leads over the next method are 0.050 ± 0.000 to 0.200 ± 0.000, 3 of them significant."
    )


def test_a_single_seed_has_no_uncertainty():
    results = [fake("swag", 0, 0.5), fake("standard", 0, 0.4)]
    assert conclusions(results)[0].endswith("the lead over swag is 0.100, from one seed.")


def test_without_corrupted_and_foreign_images_error_and_calibration_are_compared():
    results = [
        {**fake(name, 0, nll), "corrupted": {}, "foreign": {}}
        for name, nll in (("swag", 0.5), ("standard", 0.4))
    ]
    results[0]["test"] = {**results[0]["test"], "accuracy": 0.8, "ece": 0.03}
    starts = ("NLL on", "Error on test images, in percent, is lowest with standard, 10.00;", "ECE")
    assert all(map(str.startswith, conclusions(results), starts))


def test_diverged_runs_and_equal_methods_win_nothing():
    results = [fake("swag", 0, math.nan), fake("standard", 0, 0.4), fake("deep_ensemble", 0, 0.4)]
    assert conclusions(results) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_method_does_not_win_by_the_runs_that_did_not_diverge(bad):
    results = [fake("swag", seed, nll) for seed, nll in enumerate((0.1, bad))]
    results += [fake("standard", seed, 0.4) for seed in range(2)]
    assert conclusions(results) == []
    results += [fake("deep_ensemble", seed, 0.3) for seed in range(2)]
    assert conclusions(results)[0].startswith("NLL on test images is lowest with deep_ensemble, ")


def test_a_method_does_not_win_by_seeds_that_the_next_one_lacks():
    results = [fake("swag", seed, 0.5) for seed in range(2)]
    results += [fake("standard", seed, nll) for seed, nll in enumerate((0.6, 0.6, 0.1))]
    assert conclusions(results) == []


def test_the_report_starts_with_the_conclusions(tmp_path):
    text = write_report(FAKES, tmp_path, "A title")[1].read_text()
    assert text.split("\n\n")[1] == " ".join(conclusions(FAKES))

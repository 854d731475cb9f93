import math

import pytest
import torch
from torch import distributions
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from tacit import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian

GENERATOR = torch.Generator().manual_seed(0)


def randn(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


LABELS = torch.tensor([0, 2, 1, 1])


class TestCategorical:
    @pytest.mark.parametrize("targets", [LABELS, LABELS[:, None], LABELS.int(), LABELS.byte()])
    def test_loss_is_the_cross_entropy(self, targets):
        logits = randn(4, 3)
        assert_close(Categorical().loss(logits, targets), F.cross_entropy(logits, LABELS))

    def test_loss_of_samples_is_their_mean(self):
        logits = randn(5, 4, 3)
        expected = torch.stack([F.cross_entropy(one, LABELS) for one in logits]).mean()
        assert_close(Categorical().loss(logits, LABELS), expected)
        assert_close(Categorical().loss(logits, LABELS[:, None]), expected)

    def test_class_weights_and_label_smoothing_match_torch(self):
        logits, weights = randn(4, 3), [1.0, 2.0, 3.0]
        likelihood = Categorical(class_weights=weights, label_smoothing=0.1)
        expected = F.cross_entropy(
            logits, LABELS, weight=torch.tensor(weights).double(), label_smoothing=0.1
        )
        assert_close(likelihood.loss(logits, LABELS), expected)
        assert_close(likelihood.loss(logits.expand(7, 4, 3), LABELS), expected)

    def test_loss_of_sequences_is_the_mean_over_positions(self):
        logits, labels = randn(2, 5, 3), torch.randint(3, (2, 5))
        expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        assert_close(Categorical().loss(logits, labels), expected)

    @pytest.mark.parametrize(
        ("targets", "error", "match"),
        [
            (torch.tensor([0, 1, 3, 0]), ValueError, "label 3 is out of range: .* 0 to 2"),
            (torch.tensor([0, -1, 1, 0]), ValueError, "label -1 is out of range"),
            (torch.tensor([0.0, 1.0, 2.0, 0.0]), TypeError, "expected integer labels from 0 to 2"),
            (torch.tensor([True, False, True, False]), TypeError, "expected integer labels"),
            (torch.tensor([0, 1, 2]), ValueError, r"outputs of shape \(4, 3\) and targets"),
            (torch.zeros(4, 2, dtype=torch.long), ValueError, "don't fit"),
        ],
    )
    def test_bad_targets_are_refused(self, targets, error, match):
        with pytest.raises(error, match=match):
            Categorical().loss(randn(4, 3), targets)

    def test_temperature_divides_all_logits_or_their_mean(self):
        logits = randn(6, 4, 3)
        likelihood = Categorical()
        likelihood.set_temperature(2.0)
        assert_close(likelihood.predictive(logits).logits, logits / 2)
        likelihood.set_temperature(2.0, "mean")
        found = likelihood.predictive(logits).logits
        assert_close(found.mean(0), logits.mean(0) / 2)
        assert_close(found - found.mean(0), logits - logits.mean(0))

    def test_a_batch_of_classes_with_weight_0_has_no_mean(self):
        likelihood, labels = Categorical(class_weights=[0.0, 1.0]), torch.tensor([0, 0])
        with pytest.raises(ValueError, match="class_weights: all targets of a batch .* weight 0"):
            likelihood.loss(randn(2, 2), labels)
        assert likelihood.loss(randn(2, 2), torch.tensor([0, 1])).isfinite()

    def test_bad_settings_are_refused(self):
        with pytest.raises(ValueError, match="label_smoothing: expected a number from 0"):
            Categorical(label_smoothing=1.0)
        with pytest.raises(ValueError, match="class_names: expected 3 names, received 2"):
            Categorical(["a", "b"]).predictive(randn(1, 4, 3))
        with pytest.raises(ValueError, match="averaging: expected log_probs, probs, logits"):
            Categorical(averaging="mean").predictive(randn(1, 4, 3))
        with pytest.raises(ValueError, match="class_weights: expected 3 weights, received 2"):
            Categorical(class_weights=[1.0, 2.0]).loss(randn(4, 3), LABELS)
        with pytest.raises(ValueError, match="offset: expected finite values, received nan"):
            Categorical().set_temperature(1.0, offset=math.nan)


class TestBernoulli:
    @pytest.mark.parametrize("outputs", [(4,), (4, 1), (7, 4), (7, 4, 1)])
    @pytest.mark.parametrize("targets", [(4,), (4, 1)])
    def test_a_single_target_may_have_a_trailing_dimension(self, outputs, targets):
        logits = randn(4).expand(7, 4) if outputs[0] == 7 else randn(4)
        y = torch.tensor([0, 1, 1, 0])
        expected = F.binary_cross_entropy_with_logits(logits, y.double().expand_as(logits))
        assert_close(Bernoulli().loss(logits.reshape(outputs), y.reshape(targets)), expected)

    def test_several_targets_per_example(self):
        logits, y = randn(4, 3), torch.randint(2, (4, 3)).bool()
        expected = F.binary_cross_entropy_with_logits(logits, y.double())
        assert_close(Bernoulli().loss(logits, y), expected)

    def test_named_targets(self):
        likelihood = Bernoulli(["spam", "urgent"])
        prediction = likelihood.predictive(torch.tensor([[[3.0, -1.0], [-1.0, -2.0]]]))
        assert prediction.label_names == [["spam"], []]
        assert Bernoulli(["spam"]).predictive(torch.ones(3, 2, 1)).label_names == [["spam"]] * 2
        with pytest.raises(ValueError, match="names: expected 3, one for each target; received 2"):
            likelihood.predictive(randn(4, 5, 3))
        with pytest.raises(ValueError, match="names: expected 2, one for each target; received 1"):
            Bernoulli(["spam"]).loss(torch.zeros(4, 2), torch.ones(4, 2))
        with pytest.raises(ValueError, match="names: expected 1, one for each target; received 2"):
            Bernoulli(["a", "b"]).loss(torch.zeros(4, 1), torch.ones(4))
        with pytest.raises(ValueError, match="names: expected distinct names, received a more"):
            Bernoulli(["a", "a"])
        with pytest.raises(TypeError, match="names: expected a list of names, received 'spam'"):
            Bernoulli("spam")

    def test_bad_targets_are_refused(self):
        with pytest.raises(ValueError, match="target 2 is out of range: expected 0 or 1"):
            Bernoulli().loss(randn(3), torch.tensor([0, 2, 1]))
        with pytest.raises(ValueError, match="don't fit"):
            Bernoulli().loss(randn(4, 3), torch.zeros(4))


class TestGaussian:
    @pytest.mark.parametrize("outputs", [(4,), (4, 1), (7, 4), (7, 4, 1)])
    @pytest.mark.parametrize("targets", [(4,), (4, 1)])
    def test_loss_is_the_negative_log_density(self, outputs, targets):
        mean = randn(4).expand(7, 4) if outputs[0] == 7 else randn(4)
        y = randn(4)
        expected = -distributions.Normal(mean, 0.7).log_prob(y).mean()
        likelihood = Gaussian(0.7).double()
        assert_close(likelihood.loss(mean.reshape(outputs), y.reshape(targets)), expected)

    def test_the_scale_is_learned_by_maximum_likelihood(self):
        y = 3.0 * randn(1000)
        likelihood = Gaussian().double()
        optimizer = torch.optim.LBFGS(
            likelihood.parameters(),
            max_iter=100,
            tolerance_grad=1e-10,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def closure():
            optimizer.zero_grad()
            loss = likelihood.loss(torch.zeros_like(y), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        assert likelihood.scale.item() == pytest.approx(y.square().mean().sqrt().item(), rel=1e-5)
        assert not Gaussian(learn=False).log_scale.requires_grad

    def test_targets_that_would_broadcast_are_refused(self):
        with pytest.raises(ValueError, match=r"outputs of shape \(4, 2\) and targets of shape"):
            Gaussian().loss(randn(4, 2), randn(4))


class TestHeteroscedastic:
    def test_loss_is_the_negative_log_density(self):
        outputs, y = randn(5, 4, 6), randn(4, 3)
        mean, scale = outputs[..., :3], F.softplus(outputs[..., 3:]) + 1e-4
        expected = -distributions.Normal(mean, scale).log_prob(y).mean()
        assert_close(HeteroscedasticGaussian().loss(outputs, y), expected)

    def test_a_single_target_may_have_a_trailing_dimension(self):
        outputs, y = randn(4, 2), randn(4)
        ours = HeteroscedasticGaussian().loss(outputs, y)
        assert_close(ours, HeteroscedasticGaussian().loss(outputs, y[:, None]))

    def test_an_odd_number_of_outputs_is_refused(self):
        with pytest.raises(ValueError, match="expected an even number of outputs"):
            HeteroscedasticGaussian().loss(randn(4, 3), randn(4, 1))


class TestInAModel:
    def test_its_parameters_are_in_groups_and_state_dict(self):
        net = torch.nn.Linear(3, 1)
        model = tacit.variational(net, rank=2, likelihood=Gaussian(0.5))
        groups = {group["name"]: group for group in model.param_groups(lr=0.1)}
        assert groups["likelihood x1"]["params"] == [model.likelihood.log_scale]
        assert model.state_dict()["likelihood.log_scale"] == pytest.approx(math.log(0.5))
        assert "likelihood: Gaussian(scale=0.5, learn=True)" in repr(model)

    def test_other_types_are_refused_as_likelihood(self):
        with pytest.raises(TypeError, match=r"likelihood: expected tacit.Categorical\(\)"):
            tacit.variational(torch.nn.Linear(3, 1), rank=2, likelihood="categorical")


class TestBadSettings:
    @pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, math.nan], [1.0, math.inf], [0.0, 0.0]])
    def test_class_weights_that_are_no_weights(self, weights):
        with pytest.raises(ValueError, match="class_weights: expected finite weights of at least"):
            Categorical(class_weights=weights)

    def test_class_weights_of_another_kind_or_shape(self):
        with pytest.raises(TypeError, match="class_weights: expected a tensor, an array or a list"):
            Categorical(class_weights=["a", "b"])
        with pytest.raises(
            ValueError, match=r"class_weights: expected one weight per class, \(C,\)"
        ):
            Categorical(class_weights=2.0)
        assert Categorical(class_weights=[0, 1]).class_weights.dtype == torch.float32

    @pytest.mark.parametrize("shape", [(4, 2), (3, 4, 2), (4, 2, 5, 6)])
    def test_the_loss_needs_a_name_for_each_class(self, shape):
        targets = torch.zeros(4, *shape[2:] if shape[0] == 4 else (), dtype=torch.int64)
        Categorical(["a", "b"]).loss(torch.zeros(shape), targets)
        with pytest.raises(ValueError, match="class_names: expected 2 names, one for each output"):
            Categorical(["a", "b", "c"]).loss(torch.zeros(shape), targets)

    def test_class_names_must_be_distinct(self):
        with pytest.raises(ValueError, match="expected distinct names, received a more than once"):
            Categorical(["a", "b", "a"])
        with pytest.raises(TypeError, match="class_names: expected a list of names, received 'ab'"):
            Categorical("ab")
        with pytest.raises(TypeError, match="class_names: expected a list of names, received 3"):
            Categorical(3)

    @pytest.mark.parametrize("smoothing", ["0.1", None, True])
    def test_label_smoothing_must_be_a_number(self, smoothing):
        with pytest.raises(TypeError, match="label_smoothing: expected a number from 0 to below 1"):
            Categorical(label_smoothing=smoothing)

    @pytest.mark.parametrize("kind", [Categorical, Bernoulli])
    def test_averaging_is_checked_at_once(self, kind):
        with pytest.raises(ValueError, match="averaging: expected log_probs, probs, logits; rec"):
            kind(averaging="x")

    def test_temperatures(self):
        with pytest.raises(TypeError, match="temperature: expected"):
            Categorical().set_temperature("2")
        with pytest.raises(TypeError, match="temperature: expected"):
            Bernoulli().set_temperature("2")
        with pytest.raises(TypeError, match="temperature: expected a number above 0"):
            Bernoulli().set_temperature(torch.ones(2))
        with pytest.raises(ValueError, match="expected one temperature and offset, or one per cla"):
            Categorical().set_temperature(torch.ones(2, 2))


def test_nan_targets_of_a_bernoulli_are_refused():
    with pytest.raises(ValueError, match="Bernoulli: target nan is out of range"):
        Bernoulli().loss(randn(3), torch.tensor([0.0, math.nan, 1.0]))

"""Estimators for scikit-learn.

Requires scikit-learn: `pip install 'tacit-torch[sklearn]'`.
"""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "tacit.integrations.sklearn: scikit-learn is needed: pip install 'tacit-torch[sklearn]'",
        name="sklearn",
    ) from None

from tacit.integrations.sklearn.classifier import VariationalClassifier
from tacit.integrations.sklearn.regressor import VariationalRegressor

__all__ = ["VariationalClassifier", "VariationalRegressor"]

# Every target makes .venv if needed. Only Python and make have to be there.
PYTHON ?= python3
BIN := .venv/bin
PEERS := bayesian-torch blitz-bayesian-pytorch ivon-opt laplace-torch \
	asdfghjkl==0.1a4 backpack-for-pytorch curvlinops-for-pytorch einconv einops jaxtyping linear_operator \
	mpmath opt-einsum scipy tqdm typeguard unfoldNd wadler-lindig
ENV := .venv/.made

.PHONY: demo test lint types tests test-data format bench bench-peers docs clean

demo: $(ENV)
	$(BIN)/tacit demo

test: lint types tests

lint: $(ENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(ENV)
	$(BIN)/mypy

tests: $(ENV)
	$(BIN)/pytest

# Fetches MNIST, Fashion-MNIST, CIFAR-10 and others, 230 MB, into the user's cache or $$TACIT_DATA.
test-data: $(ENV)
	$(BIN)/pytest -m data

format: $(ENV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(ENV)
	$(BIN)/python -m benchmarks.step_time
	$(BIN)/python -m benchmarks.floors
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.directions
	$(BIN)/python -m benchmarks.inference
	$(BIN)/python -m benchmarks.page

bench-peers: $(ENV)
	$(BIN)/python -m pip install --quiet --no-deps --target .venv/peers $(PEERS)
	PYTHONPATH=.venv/peers:.venv/reference $(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.page

docs: $(ENV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site build dist .mypy_cache .pytest_cache .ruff_cache

$(ENV): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	# A reference for the tests. Alone: it asks for torchvision, which has no CPU build to go with torch's.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps mup
	# Another one, in a folder of its own: where it is installed, Lightning Fabric imports it, for seconds.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps --target .venv/reference torchmetrics lightning-utilities
	touch $@

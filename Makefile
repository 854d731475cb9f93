# Every target makes .venv if needed. Only Python and make have to be there.
PYTHON ?= python3
BIN := .venv/bin
PEERS := bayesian-torch blitz-bayesian-pytorch ivon-opt laplace-torch \
	asdfghjkl==0.1a4 backpack-for-pytorch curvlinops-for-pytorch einconv einops jaxtyping linear_operator \
	mpmath opt-einsum scipy tqdm typeguard unfoldNd wadler-lindig
ENV := .venv/.made

WORKERS ?= 2
# Of the tests' environment: one thread per worker is faster than all threads for each.
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test lint types tests test-torch test-data format bench bench-peers docs site-check clean

demo: $(ENV)
	$(BIN)/tacit demo

test: lint types docs tests

lint: $(ENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(ENV)
	$(BIN)/mypy

tests: $(ENV)
	$(THREADS) $(BIN)/pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term:skip-covered

# The tests in an environment of their own with another torch, several GB:
# make test-torch TORCH=2.15.0
test-torch: .venv-torch-$(TORCH)/.made
	$(THREADS) .venv-torch-$(TORCH)/bin/pytest -n $(WORKERS) --dist loadgroup

.venv-torch-%/.made: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch-$*
	sed 's/^torch==.*/torch==$*/' constraints.txt > .venv-torch-$*/constraints.txt
	.venv-torch-$*/bin/python -m pip install --quiet --constraint .venv-torch-$*/constraints.txt --editable '.[dev]'
	.venv-torch-$*/bin/python -m pip install --quiet --no-deps mup==1.0.0
	touch $@

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
	$(BIN)/python -m benchmarks.import_time
	$(BIN)/python -m benchmarks.walk
	$(BIN)/python -m benchmarks.page

bench-peers: $(ENV)
	$(BIN)/python -m pip install --quiet --no-deps --target .venv/peers $(PEERS)
	PYTHONPATH=.venv/peers $(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.page

docs: $(ENV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Opens all pages in Chromium, which has to be installed (Debian: apt-get install chromium); minutes.
site-check: docs
	nice $(BIN)/python docs/check_site.py --generate site results benchmarks/results

clean:
	rm -rf .venv .venv-torch-* site build dist .mypy_cache .pytest_cache .ruff_cache

$(ENV): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	# A reference for the tests. Alone: it asks for torchvision, which has no CPU build to go with torch's.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps mup
	touch $@

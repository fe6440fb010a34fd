# make demo | test | test-all | test-studies | quick | check | docs | wheel | links | studies | setup; each first completes .venv.
# Another interpreter: make PYTHON=python3.11 test. Some of the tests: make test PYTEST_ARGS="-k corpus"

PYTHON ?= python3
JOBS ?= 2
PYTEST_ARGS ?=

.PHONY: setup demo test test-all test-studies quick check docs wheel links studies

setup: .venv/.installed

demo: .venv/.installed
	.venv/bin/torch-lntm fit --config configs/quickstart.yaml --out runs/demo --overwrite

# One thread per process: two processes on two cores are faster than two threads in one process. Compiled tests are kept
# even where the environment, as in many containers, says otherwise: each process then starts in half the time.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n $(JOBS) --dist worksteal
STUDIES = studies/tests

# What must hold before each commit: the tests that are not marked long.
test: .venv/.installed
	$(PYTEST) -m 'not long' --durations=10 $(PYTEST_ARGS)

# All tests: of the package, of its pages and notebooks, and of the experiments and benchmarks.
test-all: .venv/.installed
	$(PYTEST) --durations=20 $(PYTEST_ARGS) tests $(STUDIES)

# The tests of the experiments and benchmarks, which are not part of the package.
test-studies: .venv/.installed
	$(PYTEST) --durations=10 $(PYTEST_ARGS) $(STUDIES)

# The tests of `make test` that are not marked slow or stat.
quick: .venv/.installed
	$(PYTEST) -m 'not slow and not stat' $(PYTEST_ARGS)

# Lists the papers' experiments and the benchmarks; .venv/bin/python -m studies NAME runs one.
studies: .venv/.installed
	@.venv/bin/python -m studies

check: .venv/.installed
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python -m tests.support.prose

# The package as one file, dist/torch_lntm-VERSION-py3-none-any.whl.
wheel: .venv/.installed
	.venv/bin/python -m pip wheel --disable-pip-version-check -q --no-deps --no-build-isolation -w dist .

# The site, into build/site. A warning is an error, so that every reference and page is found.
docs: .venv/.docs
	.venv/bin/python -m sphinx -W --keep-going -q docs build/site

# Requests every address that a page links to. It needs a network, so no test runs it. The README stands in for the front page here,
# and has no table of contents; two warnings about pages outside of a table of contents are therefore off.
LINKED = README.md,CHANGELOG.md,studies/README.md,docs/*.md,notebooks/*.ipynb
links: .venv/.docs
	.venv/bin/python -m sphinx -b linkcheck -q -c docs -D root_doc=README -D include_patterns='$(LINKED)' \
		-D suppress_warnings=toc.not_readable,toc.not_included . build/links

.venv/.docs: .venv/.installed docs/requirements.txt
	.venv/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt -r docs/requirements.txt
	@touch $@

# The stamp is written last, so the next make completes an interrupted installation.
.venv/.installed: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "The pinned dependencies need Python 3.11 or newer; $(PYTHON) is %d.%d. Name another: make PYTHON=python3.11" % v[:2] or 0)'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

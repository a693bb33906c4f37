# Every target but test-gpu and petsc creates .venv on first use. `make demo` shows what there is, `make test` says whether it works.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
BUILD := build
PETSC := .petsc
DEBIAN := python3-petsc4py openmpi-bin python3-venv
# Two processes, one BLAS thread each, or they would fight over the cores.
TEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal

# Where the browser tests look for a browser, unless NLAFORMER_BROWSER names one.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable

.PHONY: demo test browser test-all test-gpu petsc docs notebooks lint format wheel wheel-check clean

demo: $(VENV)/installed
	$(RUN) -m nlaformer demo

# What must pass before anything lands.
test: lint browser
	$(TEST) -m "not long"

# The same with long fuzz and stress tests, and the wheel installed alone.
test-all: lint browser
	$(TEST)
	$(RUN) -m benchmarks.published

# The explorer is tested in a real browser: Debian's chromium, installed here where that is possible.
browser:
	@if [ -n "$$NLAFORMER_BROWSER" ]; then \
	  command -v "$$NLAFORMER_BROWSER" >/dev/null 2>&1 && exit 0; \
	  echo "NLAFORMER_BROWSER is $$NLAFORMER_BROWSER, and no program has that name; give the path of Chromium or Chrome." >&2; exit 1; \
	fi; \
	for name in $(BROWSERS); do if command -v $$name >/dev/null 2>&1; then exit 0; fi; done; \
	get="apt-get install -qq -y --no-install-recommends chromium fonts-liberation"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  echo "Installing chromium for the tests of the explorer."; \
	  { $$get || { apt-get update -qq && $$get; }; } >/dev/null 2>&1 && exit 0; \
	fi; \
	echo "No browser: the tests of the explorer are skipped. Install chromium, or name a browser: NLAFORMER_BROWSER=/path make test"

# What needs CUDA, in one process. It takes PYTHON with the torch that it has: a GPU machine often has a build of its own.
test-gpu:
	$(PYTHON) -m pytest tests/test_engine_cuda.py tests/test_kernels.py

# nlaformer.petsc on two ranks, in an environment of its own: Debian's petsc4py is built for numpy below 2, and has no torch.
petsc: $(PETSC)/installed
	PETSC_DIR=$$(ls -d /usr/lib/petscdir/petsc*/*-real | head -n 1) OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 \
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 1800 mpirun --oversubscribe -n 2 \
	$(PETSC)/bin/python -m pytest -x --color=no --noconftest tests/petsc_ranks.py nlaformer/petsc.py

$(PETSC)/installed: constraints.txt
	@get="apt-get install -qq -y --no-install-recommends $(DEBIAN)"; \
	if [ "$$(id -u)" = 0 ]; then { $$get || { apt-get update -qq && $$get; }; } >/dev/null; fi; \
	ls -d /usr/lib/petscdir/petsc*/*-real >/dev/null 2>&1 && command -v mpirun >/dev/null && exit 0; \
	echo "make petsc needs Debian's $(DEBIAN); install them as root." >&2; exit 1
	/usr/bin/python3 -m venv --system-site-packages --clear $(PETSC)
	grep -v '^numpy==' constraints.txt > $(PETSC)/constraints.txt
	$(PETSC)/bin/pip install --quiet --disable-pip-version-check -c $(PETSC)/constraints.txt \
	  'numpy>=1.26,<2' scipy array-api-compat pytest
	touch $@

# The pages as a site in build/site, read from disk: no warning, no broken link, nothing from the network.
docs: $(VENV)/installed
	OMP_NUM_THREADS=1 $(RUN) -m sphinx -W --keep-going -q -d $(BUILD)/doctrees -c docs . $(BUILD)/site
	$(RUN) docs/check_site.py $(BUILD)/site

# The notebooks of examples/, from its scripts.
notebooks: $(VENV)/installed
	$(RUN) -m examples.notebooks

lint: $(VENV)/installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(VENV)/installed
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

wheel: $(VENV)/installed
	$(RUN) -m hatchling build -d dist

# The wheel in an empty environment, which downloads the pinned torch, outside the checkout: the README's examples run.
wheel-check: $(VENV)/installed
	@set -eu; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; alone=$$folder/environment/bin/python; \
	$(RUN) -m hatchling build -t wheel -d "$$folder"; \
	$(RUN) -c 'from tests.test_readme import examples; print(examples())' > "$$folder/examples.py"; \
	$(PYTHON) -m venv "$$folder/environment"; \
	"$$alone" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$folder"/*.whl; \
	cd "$$folder"; "$$alone" -I examples.py; "$$alone" -I -m nlaformer info

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nlaformer needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,fast,amg]'
	touch $@

clean:
	rm -rf $(VENV) $(PETSC) .mypy_cache .ruff_cache .hypothesis build dist

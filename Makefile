# Two commands do everything: `make demo` and `make test`. Both create .venv on first use.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# The tests run on two processes; one BLAS thread each, or they would fight over the cores.
TEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal

.PHONY: demo test format clean

demo: $(VENV)/installed
	$(RUN) -m nlaformer demo

test: $(VENV)/installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(TEST)

format: $(VENV)/installed
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nlaformer needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist

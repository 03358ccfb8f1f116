# `make demo` and `make test` are all a fresh machine with Python 3.11 and make needs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install demo test style lint browser docs bench papers clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "engram needs Python 3.11 or newer; run make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,sweep,ray,defence,onnx,keras,tables]'
	touch $@

demo: install
	$(BIN)/engram demo -o runs/demo

style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style
	$(BIN)/mypy

# The report is tested in Debian's chromium; where there is none and apt can't bring it, those tests are skipped.
browser:
	@command -v chromium >/dev/null || apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 \
		|| { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
		|| echo "no chromium here, and apt can't install it: the browser tests will be skipped"

# Types are checked beside the tests; three workers fill the time in which tests wait for processes that they kill.
test: style browser
	@mkdir -p runs
	@$(BIN)/mypy >runs/types.txt 2>&1 & types=$$!; \
	OMP_NUM_THREADS=1 ENGRAM_ARTEFACTS=runs/artefacts $(BIN)/python -m pytest -n 3 --dist worksteal -q; tests=$$?; \
	wait $$types || { cat runs/types.txt; exit 1; }; exit $$tests

# The documentation as a site in site/. Strict: a broken link or anchor fails. Nothing is fetched.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install
	$(BIN)/python -m benchmarks.race -o runs/bench
	$(BIN)/python -m benchmarks.steps -o runs/bench
	$(BIN)/python -m benchmarks.sweep

# Hours: every figure and table of the papers. The same command resumes after a kill; start it twice to use two cores.
papers: install
	$(BIN)/engram reproduce all --scale cpu -o runs/papers
	$(BIN)/python -m benchmarks.trends runs/papers

clean:
	rm -rf .venv runs site dist .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

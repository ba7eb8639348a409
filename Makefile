# Everything runs from .venv, which `make install` creates; each target installs what it needs first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# -qq: pip prints errors only. No prompt is ever answered, since CI has no standard input.
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
TYPED := tenure gates runners worker/tenure_protocol worker/tenure_worker worker/tenure_live assets pipelines

.DEFAULT_GOAL := test
.PHONY: install demo test check sim bench up debian clean

install: $(STAMP)

$(STAMP): constraints.txt pyproject.toml worker/pyproject.toml
	@echo "== install: the pinned packages into .venv (two to four minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Tenure needs Python 3.11 or newer; set PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install -c constraints.txt -e ./worker -e '.[dagster,s3,example,kaggle,modal,lightning,runpod,vast,dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/tenure demo

# What tests use beside Python: a browser for the pages, a real sshd, a sandbox. Where one is missing and cannot be
# installed, its tests skip and say so.
DEBIAN := chromium chromium-driver openssh-server bubblewrap
debian:
	@export DEBIAN_FRONTEND=noninteractive; \
	if command -v chromium >/dev/null && command -v bwrap >/dev/null && [ -x /usr/sbin/sshd ]; then exit 0; fi; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "== test: installing $(DEBIAN)"; \
		{ apt-get update -qq && apt-get install -y -qq $(DEBIAN); } >/dev/null 2>&1 \
		|| echo "== test: they could not be installed; some tests will skip"; \
	fi

# Four processes on two cores: half of the tests wait, for other processes and for leases to end.
test: $(STAMP) debian
	@echo "== test"
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

check: $(STAMP)
	@echo "== check: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check --diff .
	@echo "== check: mypy"
	@$(BIN)/mypy --no-error-summary $(TYPED)
	@echo "== check: import-linter"
	@$(BIN)/lint-imports --no-logo

sim: $(STAMP)
	@echo "== sim: the property tests, with examples drawn anew"
	@$(BIN)/python -m pytest -n 2 -m "hypothesis and not soak" --hypothesis-profile=explore
	@echo "== sim: the long seeded histories"
	@$(BIN)/python -m pytest -n 2 -m soak -o faulthandler_timeout=7200 || { [ $$? = 5 ] && echo "== sim: no test is marked soak"; }

bench: $(STAMP)
	@set -e; for script in bench/*.py; do \
		if [ -e "$$script" ]; then echo "== bench: $$script"; $(BIN)/python "$$script"; fi; \
	done

up: $(STAMP)
	@$(BIN)/tenure up

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Everything a person or CI runs. `make run` and `make test` set up what they need; Python 3.11+ is all they expect.
PYTHON ?= python3
SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Two test processes more than there are processors: tests wait for the gateways and servers they start.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))

# Programs that tests start load what others compiled. Where the variable is set, each of them would compile all of it again.
export PYTHONDONTWRITEBYTECODE :=

# Run a command that says nothing for up to a minute; every five seconds print how far it has come.
WITH_PROGRESS := (while sleep 5 >&- 2>&-; do echo "  $$(ls -d $(VENV)/lib/*/site-packages/*.dist-info 2>/dev/null | wc -l) packages installed"; done) & \
  trap "kill $$! 2>/dev/null" EXIT;

.PHONY: setup run test sdk-path check lint types layers architecture counts trace-call schemas bench bench-gate bench-start bench-stdio bench-page bench-loop bench-workflows bench-tasks bench-engines bench-fleet conformance accept attacks docs fuzz-parts faults faults-report faults-engines mutants soak postgres s3 fleet oidc temporal wheels packaging image up down clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Moongate needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo "Setting up Moongate in $(VENV), once. This takes about a minute."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  fetching and installing about 140 packages"
	@$(WITH_PROGRESS) $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1" && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable . --group dev && \
	  $(BIN)/python -m compileall -q gateway
	@touch $(STAMP)

run: $(STAMP)
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash config/servers/run.sh $(ARGS)

test: $(STAMP)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not interop and not conformance and not browser and not faults and not soak and not attacks and not temporal and not nginx and not packaging and not s3 and not fleet and not oidc" $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .

# A larger young generation saves pyright garbage collections: `gateway` takes 78 s of processor time, without it 83 s.
types: $(STAMP)
	@NODE_OPTIONS=--max-semi-space-size=192 $(BIN)/pyright

layers: $(STAMP)
	@$(BIN)/lint-imports

architecture: $(STAMP)
	@$(BIN)/python -m pytest -q tests/architecture $(ARGS)

counts: $(STAMP)
	@$(BIN)/python -m tests.architecture.counts

trace-call: $(STAMP)
	@$(BIN)/python -m tests.architecture.trace_call

sdk-path: $(STAMP)
	@SDK_PATH=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not interop and not faults and not postgres" tests/interaction $(ARGS)

check: lint types layers test

schemas: $(STAMP)
	@$(BIN)/moongate schema --write config

fuzz-parts: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary atheris --group fuzz || \
	  echo "faults: atheris cannot be installed here; its tests are skipped by name"

faults: fuzz-parts
	@$(BIN)/python -m pytest -q -p tests.faults.report -m faults $(ARGS)

faults-report: fuzz-parts
	@$(BIN)/python -m pytest -q -p tests.faults.report --faults-page -m "not interop and not conformance and not browser and not soak and not attacks" $(ARGS)

# The kill matrix on both task engines and both databases: about half an hour.
faults-engines: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group temporal || \
	  echo "temporal: the server cannot be installed here; its tests are skipped by name"
	@$(BIN)/python -m pytest -q -p tests.faults.report --faults-engines $(or $(ARGS),tests/faults/test_kill_matrix.py tests/faults/test_upgrade.py)

# Long: about two hours. ARGS="--package policy --sample 50" runs a part; a run that is started again goes on.
mutants: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group mutants
	@$(BIN)/python -m tests.mutants $(ARGS)

soak: $(STAMP)
	@$(BIN)/python -m pytest -q -s -m soak $(ARGS)

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.page --runs 1 --part hop --part catalogue $(ARGS)

bench-gate: $(STAMP)
	@$(BIN)/python -m benchmarks.gate $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

bench-start: $(STAMP)
	@$(BIN)/python -m benchmarks.start $(ARGS)

bench-stdio: $(STAMP)
	@$(BIN)/python -m benchmarks.page --runs 1 --part bridges $(ARGS)

bench-page: $(STAMP)
	@bash benchmarks/setup.sh
	@$(BIN)/python -m benchmarks.page $(ARGS)

bench-loop: $(STAMP)
	@$(BIN)/python -m benchmarks.loop $(ARGS)

bench-workflows: $(STAMP)
	@$(BIN)/python -m benchmarks.workflows $(ARGS)

bench-tasks: $(STAMP)
	@$(BIN)/python -m benchmarks.tasks $(ARGS)

bench-engines: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group temporal
	@$(BIN)/python -m benchmarks.task_engines $(ARGS)

# Replicas behind nginx on PostgreSQL: ARGS is a part (calls, tasks, replicas or all) and its options.
bench-fleet: $(STAMP)
	@$(BIN)/python -m benchmarks.fleet $(or $(ARGS),all)

conformance: $(STAMP)
	@bash tests/conformance/setup.sh
	@$(BIN)/python -m pytest -q -s -m conformance tests/conformance $(ARGS)

accept: $(STAMP)
	@bash tests/accept/setup.sh
	@$(BIN)/python -m pytest -q -n auto -m "interop or browser" $(ARGS)

attacks: $(STAMP)
	@bash tests/attacks/setup.sh
	@$(BIN)/python -m pytest -q -m attacks tests/attacks $(ARGS)

docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs docs/_build
	@echo "docs/_build/index.html"

temporal: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group temporal || \
	  echo "temporal: the server cannot be installed here; its tests are skipped by name"
	@$(BIN)/python -m pytest -q -m temporal $(ARGS)

postgres: $(STAMP)
	@$(BIN)/python -m pytest -q -m postgres $(ARGS)

fleet: $(STAMP)
	@$(BIN)/python -m pytest -q -m "(fleet or nginx) and not faults" $(ARGS)

s3: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group s3 || \
	  echo "s3: the server cannot be installed here; its tests are skipped by name"
	@$(BIN)/python -m pytest -q -m s3 $(ARGS)

# An OpenID provider from npm, with a Node from PyPI.
oidc: $(STAMP)
	@PYTHON=$(PYTHON) bash tests/install_node.sh "$${OIDC_HOME:-$$HOME/.cache/moongate-oidc}" oidc-provider@9.13.3
	@$(BIN)/python -m pytest -q -m oidc $(ARGS)

# Every Python 3.11 to 3.14 that is installed, and pipx and uvx; a missing Python is reported as skipped.
wheels: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group wheels
	@$(BIN)/python -m tests.packaging.wheels $(ARGS)

# The image, compose.yaml and the chart, as far as they can be checked without containers: hadolint, Helm, schemas of Kubernetes.
packaging: $(STAMP)
	@bash tests/packaging/setup.sh
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group packaging
	@$(BIN)/python -m pytest -q tests/packaging $(ARGS)

# Without a container daemon and a registry; needs root, mmdebstrap and buildah. Then the image is checked with a read-only root.
image:
	@bash deploy/build-image.sh $(or $(OUT),dist/image)
	@$(PYTHON) -m tests.packaging.image $(or $(OUT),dist/image)

# Two gateways, PostgreSQL, Temporal and nginx with TLS; needs Docker with Compose 2, and openssl.
up:
	@bash deploy/up.sh

down:
	@docker compose down

clean:
	@rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache

# The README's two commands, and what they are made of. All but lint install what is missing first; a second run starts
# in seconds. `make check` is for the inner loop: no root, no lab. docs/testing.md says which tests each of these runs.
.PHONY: demo demo-maskrcnn check test test-all rest test-long fuzz faults install lint stunnel chromium promtool torch onnx \
	kube jupyter checkov

# Most tests wait for hosts, not for the processor: four files are worked on at once, each process with labs of its own.
together = -n 4 --dist loadfile --no-loadscope-reorder
pure = not lab and not slow and not long

demo: install
	@.venv/bin/inv demo

check: install lint
	@.venv/bin/python -m pytest -q -n 3 --dist loadfile -m "$(pure) and not network and not seconds" \
		--hypothesis-profile=quick

# Horovod is built, and what some tests use is unpacked, beside the linters.
test:
	@scripts/install.sh python
	@$(MAKE) -j3 --no-print-directory lint torch install
	@echo "make test: 1 of 2, all pure tests"
	@.venv/bin/python -m pytest -q $(together) -m "$(pure)"
	@echo "make test: 2 of 2, each promise once, on lab hosts and with real trainings"
	@.venv/bin/python -m pytest $(together) -m promise

test-all:
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory rest

rest: install torch
	@echo "make rest: all other tests on lab hosts and with trainings; make test-long has those that train for minutes"
	@.venv/bin/python -m pytest $(together) -m "(lab or slow) and not promise and not long"

# An hour of damaged input and of property tests; `make test` gives each of these ten seconds or 100 examples.
fuzz: install
	@DLAMI_FUZZ_SECONDS=$${DLAMI_FUZZ_SECONDS:-1200} .venv/bin/python -m pytest $(together) -m "fuzz or hypothesis" --timeout 0 \
		--hypothesis-profile=fuzz

# Lab clusters broken in 60 ways drawn from each of two grids (about two hours, as root): `make faults SEED=2` draws others.
faults: install
	@for grid in first odd; do .venv/bin/python -m tests.faults.trial --grid $$grid --seed $${SEED:-1} --count 60 || bad=1; \
		done; [ -z "$$bad" ]

test-long: install jupyter checkov
	@.venv/bin/python -m pytest -m long --timeout 2400

install:
	@scripts/install.sh

# The way to EFS is tried with the real one, by root alone; without it one test is skipped and says so.
stunnel: chromium
	@[ "$$(id -u)" != 0 ] || command -v stunnel >/dev/null || { apt-get update -q && \
		apt-get install -y -q --no-install-recommends stunnel4; } >/dev/null || echo "stunnel4 cannot be installed here"

# A job's page is opened in a real browser, which root alone gets; without it one test is skipped and says so.
chromium: promtool
	@[ "$$(id -u)" != 0 ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { apt-get update -q && \
		apt-get install -y -q --no-install-recommends chromium; } >/dev/null || echo "chromium cannot be installed here"

# Prometheus' tool that reads what `inv metrics` writes; without it one test is skipped and says so.
promtool:
	@scripts/install-promtool.sh

# kubectl, helm and Kubernetes' schemas, once for this machine; without them the tests that use them are skipped and say so.
kube:
	@scripts/install-kube.sh >/dev/null

# ONNX's runtime, 28 MB; without it the tests that use it are skipped and say so.
onnx:
	@scripts/install-onnx.sh

# PyTorch from the distribution's archive (150 MB), by root alone; without it the tests that use it are skipped and say so.
torch: stunnel kube onnx
	@scripts/install-torch.sh

# checkov in an environment of its own (54 MB to fetch), for the long test that runs it; without it that is skipped and says so.
checkov: install
	@scripts/install-checkov.sh

# JupyterLab from the package index (210 MB), for the long test of its page; without it that is skipped and says so.
jupyter: install
	@XDG_DATA_HOME=$(CURDIR)/.jupyter .venv/bin/python -c "from cluster.tunnels import jupyter_packages as j; j.install()" \
		|| echo "JupyterLab cannot be installed here"

lint:
	@.venv/bin/ruff check . && .venv/bin/ruff format --check -q . && .venv/bin/mypy && .venv/bin/shellcheck scripts/*.sh .ci/run
	@layers=$$(.venv/bin/lint-imports --no-logo 2>&1) || { echo "$$layers"; exit 1; }

demo-maskrcnn: install
	@.venv/bin/inv demo.maskrcnn

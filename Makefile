# The README's two commands, and what they are made of. All but lint install what is missing first; a second run starts
# in seconds. `make check` is for the inner loop: no root, no lab, under a minute on two idle cores.
.PHONY: demo demo-maskrcnn check test test-long fuzz faults install lint

# Most tests wait for hosts, not for the processor: three files are worked on at once, each process with labs of its own.
together = -n 3 --dist loadfile

demo: install
	@.venv/bin/inv demo

test: install lint
	@.venv/bin/python -m pytest $(together)

check: install lint
	@.venv/bin/python -m pytest -q -n 3 -m "not lab and not slow and not long"

# An hour of damaged input; `make test` gives each of these ten seconds.
fuzz: install
	@DLAMI_FUZZ_SECONDS=$${DLAMI_FUZZ_SECONDS:-1200} .venv/bin/python -m pytest $(together) -m fuzz --timeout 0 \
		--hypothesis-profile=fuzz

# Lab clusters broken in 60 ways drawn from a grid (about an hour, as root): `make faults SEED=2` draws others.
faults: install
	@.venv/bin/python -m tests.faults.trial --seed $${SEED:-1} --count 60

test-long: install
	@.venv/bin/python -m pytest -m long --timeout 1200

install:
	@scripts/install.sh

lint:
	@.venv/bin/ruff check . && .venv/bin/ruff format --check -q . && .venv/bin/mypy && .venv/bin/shellcheck scripts/*.sh .ci/run

demo-maskrcnn: install
	@.venv/bin/inv demo.maskrcnn

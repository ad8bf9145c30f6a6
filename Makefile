# The README's two commands. Both install what is missing first; a second run starts in seconds.
.PHONY: demo demo-maskrcnn test test-long install lint

demo: install
	@.venv/bin/inv demo

test: install lint
	@.venv/bin/python -m pytest

test-long: install
	@.venv/bin/python -m pytest -m long --timeout 1200

install:
	@scripts/install.sh

lint:
	@.venv/bin/ruff check . && .venv/bin/ruff format --check -q . && .venv/bin/mypy && .venv/bin/shellcheck scripts/*.sh .ci/run

demo-maskrcnn: install
	@.venv/bin/inv demo.maskrcnn

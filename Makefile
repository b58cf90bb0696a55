PYTHON ?= python3
BIN := .venv/bin
PROTOS := $(wildcard protos/outrider/v1/*.proto)
SETUP := .venv/.ready
# The part in C++ is built again when it changes.
NATIVE := .venv/.native
NATIVE_SOURCES := $(wildcard native/*.py native/*.toml native/*.in native/outrider_native/* native/src/* native/src/*/*)

.PHONY: setup demo test up lint protos bench clean

setup: $(SETUP) $(NATIVE)

# torch goes first and pinned: its dependants would otherwise pull a build for GPUs of several GB.
$(SETUP): pyproject.toml constraints.txt
	@echo "setting up .venv (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet "pip>=25.1"
	@$(BIN)/pip install --quiet -c constraints.txt torch
	@$(BIN)/pip install --quiet -c constraints.txt -e ".[serve,model,bench]" --group dev
	@touch $(SETUP)

$(NATIVE): $(SETUP) $(NATIVE_SOURCES)
	@echo "building outrider-native"
# What an earlier build has left would be taken for current, and files that are gone would be packed.
	@rm -rf native/build native/*.egg-info
	@$(BIN)/pip install --quiet --force-reinstall --no-deps ./native
	@touch $(NATIVE)

demo: setup
	$(BIN)/python -m services.demo

up: setup
	$(BIN)/python -m services $(if $(MODEL),--model $(MODEL)) $(if $(DRAFTER),--drafter $(DRAFTER)) $(if $(RANKS),--ranks $(RANKS)) $(if $(PAIRS),--pairs $(PAIRS))

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/buf lint && $(BIN)/buf format --diff --exit-code && $(BIN)/buf breaking --against protos/frozen.binpb
	$(BIN)/python -m tests.stubs_are_current
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/pyright --warnings

protos: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. --mypy_grpc_out=. $(PROTOS)

bench: setup
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.speculation_report --measure all
	$(BIN)/python -m benchmarks.recovery
	$(BIN)/python -m benchmarks.placement
	$(BIN)/python -m benchmarks.aot_report --save
	$(BIN)/python -m benchmarks.gpu_page

clean:
	rm -rf .venv native/build native/*.egg-info .pytest_cache .ruff_cache .hypothesis

# Every command of the project. Each makes what it needs first (.venv, the Rust extension) and is quick when nothing changed.
# PYTHON=python3.12 chooses the interpreter; everything stays inside this folder.

.DEFAULT_GOAL := help
.PHONY: help demo demo-slurm demo-kubernetes hip test test-rust test-python test-rdma test-slurm test-kubernetes test-skypilot test-gpu-settings check format sim bench bench-peers bench-rdma bench-training bench-collectives check-instructions wheel fuzz asan chaos soak soak-training clean

SETUP := @scripts/setup.sh
RUN := @scripts/run.sh
SAY := @printf '==> %s\n'

SEED ?=
SEEDS ?= 1000
FUZZ_SECONDS ?= 60
FUZZ_INPUTS ?= 0
FUZZ_TARGETS ?=
PYTEST ?= -q
# Tests with real processes mostly wait: two files at a time leave two processors idle for most of it. A file's tests share what it
# starts; in the order of names the longest come first.
SIDE_BY_SIDE := --numprocesses 3 --dist loadfile --no-loadscope-reorder
ASAN := env RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo:  ## replicas train on real text while something fails every few seconds; ends with a table and a picture
	$(SETUP) demo torch ft extension
	$(RUN) python examples/demo

demo-slurm:  ## the same as a Slurm job: a small cluster on this machine, a node for each replica; nodes lose their power, too (root)
	$(SETUP) demo torch ft extension
	@scripts/mini_slurm.py prepare
	$(RUN) scripts/mini_slurm.py with --nodes 17 -- python examples/demo --slurm --out demo-slurm.png

demo-kubernetes:  ## the same on pods of a small Kubernetes cluster on this machine; pods are deleted, too (root; builds its control plane once)
	$(SETUP) test demo torch ft extension
	@scripts/mini_kubernetes.py prepare
	$(RUN) scripts/mini_kubernetes.py with python examples/demo --kubernetes --out demo-kubernetes.png

test: test-rust test-python  ## all tests: the core with 1,000 simulator seeds, then Python's with real processes

test-rust:  ## the Rust crates' tests alone
	$(SETUP) extension
	$(SAY) "Rust: the core, its properties, 1,000 simulator seeds; one-sided memory; GPUs, on stand-ins for the vendors' libraries"
	$(RUN) cargo test --package roost-core --package roost-rdma --package roost-hip

test-python:  ## Python's tests alone; PYTEST='-k name -x' chooses
	$(SETUP) test dev demo torch ft extension
	$(SAY) "Python: units, types, real processes, examples"
	$(RUN) python -m pytest $(SIDE_BY_SIDE) --durations 15 $(PYTEST)

test-rdma:  ## transfers by NICs: real libibverbs on soft-RoCE in a small machine (QEMU; some 15 minutes)
	$(SETUP) test extension
	$(SAY) "the machine"
	@scripts/rxe_vm.py --prepare
	$(SAY) "Rust: queue pairs, then engines, between rxe0 and rxe1"
	$(RUN) env CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$(CURDIR)/scripts/rxe_vm.py --timeout 900 --" \
		cargo test --package roost-rdma --test verbs -- --ignored --test-threads 1 --nocapture
	$(RUN) env CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$(CURDIR)/scripts/rxe_vm.py --timeout 900 --env ROOST_TEST_SOFT_ROCE=1 --" \
		cargo test --package roost-rdma --test rules -- --test-threads 1 --skip a_link_that_is_cut
	$(SAY) "Python: rules, lives, and a cable that loses packets, is cut and mended"
	$(RUN) scripts/rxe_vm.py --timeout 1800 --env ROOST_TEST_SOFT_ROCE=1 -- python -m pytest -p no:cacheprovider $(PYTEST) \
		tests/system/test_rdma_rules.py tests/system/test_rdma_life.py tests/system/test_rdma_cable.py \
		tests/soak/test_torn_reads.py -k '(ibverbs or nics or cable) and not OfTorch'

test-slurm:  ## jobs on a real Slurm of four nodes on this machine (root; installs Debian's packages where they are missing)
	$(SETUP) test dev demo torch ft extension
	$(SAY) "Slurm"
	@scripts/mini_slurm.py prepare
	$(RUN) python -m pytest -m "" tests/job/test_slurm.py $(PYTEST)

test-kubernetes:  ## jobs on a real Kubernetes control plane with three small nodes (root; builds it once, which takes 2 cores some ten minutes)
	$(SETUP) test dev schemas demo torch ft extension
	$(SAY) "Kubernetes"
	@scripts/mini_kubernetes.py prepare
	$(RUN) python -m pytest -m "" tests/job/test_kubernetes_cluster.py tests/job/test_kubernetes_schemas.py $(PYTEST)

test-skypilot:  ## what jobs ask of SkyPilot, held against its real SDK (in an environment of its own, some 460 MB, once)
	$(SETUP) test extension
	@scripts/skypilot.sh python -m pytest tests/job/test_skypilot_sdk.py $(PYTEST)

test-gpu-settings:  ## where a GPU's libraries are missing, or have no device: what is said, and the tests that ask for GPUs
	$(SETUP) test torch extension
	$(RUN) scripts/gpu-settings.sh

check:  ## formatters, linters, types, stubs, spelling
	$(SETUP) test dev extension
	$(SAY) "rustfmt, clippy, rustdoc"
	$(RUN) cargo fmt --all --check
	$(RUN) cargo fmt --manifest-path fuzz/Cargo.toml --check
	$(RUN) cargo clippy --workspace --all-targets --quiet -- --deny warnings
	$(RUN) env RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --quiet
	$(SAY) "ruff"
	$(RUN) ruff format --check
	$(RUN) ruff check
	$(SAY) "mypy, basedpyright, stubs against the built module"
	$(RUN) mypy
	$(RUN) basedpyright --level warning
	$(RUN) python -m mypy.stubtest roost._roost --mypy-config-file pyproject.toml \
		--allowlist tests/typing/stubtest.txt --ignore-unused-allowlist
	$(SAY) "shellcheck, typos"
	$(RUN) shellcheck --external-sources scripts/*.sh .ci/run
	$(RUN) typos
	$(SAY) "all checks passed"

format:  ## formats Rust and Python in place
	$(SETUP) dev
	$(RUN) cargo fmt --all
	$(RUN) cargo fmt --manifest-path fuzz/Cargo.toml
	$(RUN) ruff format
	$(RUN) ruff check --fix

hip:  ## the kernels for AMD's cards: fetches a HIP compiler, then shows sizes and registers; embedded from then on
	$(SETUP)
	@scripts/hip-toolchain.sh
	@scripts/cuda-toolchain.sh
	$(SAY) "kernels for gfx90a, gfx942, gfx950 and sm_90"
	$(RUN) cargo test --package roost-hip --test objects -- --nocapture
	$(SAY) "what is declared of HIP and CUDA against their headers"
	$(RUN) cargo test --package roost-hip --test headers -- --nocapture

sim:  ## simulated runs of the core: one again with SEED=17, many with SEEDS=100000
	$(SETUP) extension
	$(RUN) env $(if $(SEED),ROOST_SIM_SEED=$(SEED),ROOST_SIM_SEEDS=$(SEEDS)) \
		cargo test --package roost-core --test sim -- --nocapture
	$(RUN) env $(if $(SEED),ROOST_SIM_SEED=$(SEED),ROOST_SIM_SEEDS=$(SEEDS)) \
		cargo test --package roost-core --lib trees -- --nocapture

bench:  ## the core's benches and Python's, each beside its floor; writes benches/README.md
	$(SETUP) test released
	$(SAY) "Rust: each figure beside the raw socket's"
	$(RUN) cargo bench --package roost-benches
	$(SAY) "Python: each figure beside a hand-written uvloop program's"
	$(RUN) python -m benches.python --write benches/README.md

bench-peers:  ## the same work on Monarch, Ray and xoscar, as far as they are installed in .venv
	$(SETUP) test released
	$(RUN) python -m benches.python --peers monarch,ray,xoscar

bench-rdma:  ## one-sided memory, each way beside its floor; by NICs in the machine of test-rdma
	$(SETUP) test released
	$(SAY) "on this host"
	$(RUN) python -m benches.python.one_sided --largest 1024
	$(SAY) "between hosts, while the owner's interpreter is held"
	$(RUN) python -m benches.python.one_sided --ways plain --locked
	$(SAY) "the machine"
	@scripts/rxe_vm.py --prepare
	$(RUN) scripts/rxe_vm.py --timeout 900 -- python -m benches.python.one_sided --ways ibverbs --largest 16

bench-training:  ## training without failures and after kills, beside plain torch and torchft
	$(SETUP) demo torch ft extension
	$(RUN) python -m benches.training

bench-collectives:  ## small and large all-reduces on the CPU, beside plain torch.distributed
	$(SETUP) torch extension
	$(RUN) python -m benches.python.collectives

check-instructions:  ## instructions of the hot path, counted by callgrind; more than 10 % up fails
	$(SETUP) extension
	$(RUN) scripts/check-instructions.sh

wheel:  ## one abi3 manylinux wheel in dist/, tried on each CPython from 3.11 that is found
	$(SETUP) dev
	$(RUN) scripts/wheel.sh

fuzz:  ## each decoder for FUZZ_SECONDS=60 or FUZZ_INPUTS=10000000; FUZZ_TARGETS='frame hello' chooses
	$(SETUP) dev
	$(RUN) scripts/fuzz.sh $(if $(filter-out 0,$(FUZZ_INPUTS)),0,$(FUZZ_SECONDS)) $(FUZZ_INPUTS) $(FUZZ_TARGETS)

asan:  ## tests of memory between processes under AddressSanitizer, with 10,000 cancelled transfers
	$(SETUP) extension
	$(SAY) "Rust: roost-rdma under AddressSanitizer"
	$(RUN) $(ASAN) cargo test --package roost-rdma --target x86_64-unknown-linux-gnu
	$(RUN) $(ASAN) cargo test --package roost-rdma --target x86_64-unknown-linux-gnu \
		--test cancelled -- --ignored --nocapture

chaos:  ## the tests of what is promised when things go wrong, in their long form; figures at the end
	$(SETUP) test dev demo torch ft released
	$(RUN) python -m pytest -m "" tests/chaos tests/system/test_demo.py --long $(PYTEST)

soak:  ## the endurance tests in their long form, hours of them; figures at the end
	$(SETUP) test dev torch released
	$(RUN) python -m pytest tests/soak --long $(PYTEST)

soak-training:  ## an hour of training with a failure every five seconds, and a state of 1 GiB; figures at the end
	$(SETUP) test dev torch ft released
	$(RUN) python -m pytest tests/soak/test_training.py tests/ft/test_state.py --long $(PYTEST)

clean:  ## removes what was built here, .venv too
	rm -rf .venv target dist fuzz/target .mypy_cache .pytest_cache .ruff_cache .hypothesis python/roost/*.so

# Everything a contributor runs. `make help` lists the targets; CONTRIBUTING.md says when to use which.
SHELL := /bin/sh
PYTHON := .venv/bin/python
# The tests start Python some thousand times. Where an environment has this set, as images do to stay small, each start
# would compile all that it imports again: of a controller's 3 s of computing that is 2.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: ## Make the virtual environment in .venv from the lock file (does nothing when it is up to date)
	@sh hack/bootstrap.sh

.PHONY: setup
setup: venv ## Get all that the demo and the tests need: control plane binaries, kernel VM, helm, a runtime's side of NRI, promtool
	@$(PYTHON) -m testbed setup kernel controlplane helm nfd nri promtool

.PHONY: demo
demo: venv ## Run the main job on a real API server and a real kernel; exits 0 only if all of it held
	@$(PYTHON) -m testbed demo

.PHONY: demo-cluster
demo-cluster: setup-cluster ## Bring up a cluster with a real kubelet, Swapwarden and examples/, and say how to talk to it
	@$(PYTHON) -m testbed cluster up

.PHONY: demo-down
demo-down: venv ## Remove what demo-cluster brought up
	@$(PYTHON) -m testbed cluster down

.PHONY: test
test: venv ## Set up what the tests need and run every tier; show what each took
	@$(PYTHON) -m testbed.run.tiers unit integration oldest kernel e2e

.PHONY: coverage
coverage: venv ## Run unit and integration tests (twice as slow), and show which lines of the product none of them runs
	@rm -f .coverage
	@PYTEST_ADDOPTS="--cov --cov-append --cov-report=" $(PYTHON) -m testbed.run.tiers unit integration
	@$(PYTHON) -m coverage report

.PHONY: test-unit
test-unit: venv ## Run the unit tests: no I/O
	@$(PYTHON) -m testbed.run.tiers unit

.PHONY: test-integration
test-integration: venv ## Run the integration tests: a real etcd and kube-apiserver
	@$(PYTHON) -m testbed.run.tiers integration

.PHONY: test-oldest
test-oldest: venv ## Run what an installation needs of the integration tests on the oldest Kubernetes that README promises
	@$(PYTHON) -m testbed.run.tiers oldest

.PHONY: test-matrix
test-matrix: venv ## Run the integration tests on each minor version of Kubernetes (hours; continues where it was stopped); VERSION=1.31.14 for one
	@$(PYTHON) -m testbed.run.versionmatrix $(VERSION)

.PHONY: test-kernel
test-kernel: venv ## Run the kernel tests: a VM with cgroup v2 and swap
	@$(PYTHON) -m testbed.run.tiers kernel

.PHONY: test-kernel-memory
test-kernel-memory: venv ## Run what shows how the kernel swaps, protects and throttles, on two kernels (long)
	@$(PYTHON) -m testbed setup controlplane helm
	@failed=0; for kernel in 6.1 6.12; do \
	  KERNEL_FACTS=1 TESTBED_KERNEL=$$kernel $(PYTHON) -m pytest -q -n0 tests/kernel/test_memory_facts.py \
	    tests/kernel/test_memory_qos.py tests/kernel/test_eviction_order.py tests/kernel/test_pressure.py \
	    tests/kernel/test_reclaim.py tests/kernel/test_churn.py || failed=1; \
	done; exit $$failed

.PHONY: setup-cluster
setup-cluster: venv ## Get what a whole cluster needs: the node VM's disk, more programs (root; long the first time)
	@$(PYTHON) -m testbed setup controlplane helm cluster

.PHONY: e2e
e2e: venv ## Run the e2e tests on a real kubelet: kind where docker works, else the node VM; E2E_PROVIDER chooses
	@$(PYTHON) -m testbed.run.tiers e2e

.PHONY: e2e-without-eviction
e2e-without-eviction: setup-cluster ## Show how a load ends where nobody evicts; make e2e has the same load with evictions (minutes)
	E2E_WITHOUT_EVICTION=1 $(PYTHON) -m pytest -q -s -n0 tests/e2e/test_pressure_without_eviction.py

.PHONY: lint
lint: venv ## Check format, rules, types, import contracts, sizes, generated files and the documentation's links
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	@$(PYTHON) -m hack.count check
	@$(PYTHON) -m hack.generate check
	@$(PYTHON) -m hack.celcost.costs check
	@$(MAKE) --no-print-directory docs

.PHONY: docs
docs: venv ## Build docs/ as a site into build/site; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

.PHONY: format
format: venv ## Format the code and apply safe fixes
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

.PHONY: generate
generate: venv ## Make crds/, the generated pages of docs/ and all files of the chart from the code
	$(PYTHON) -m hack.generate write
	@$(MAKE) --no-print-directory chart

.PHONY: chart
chart: venv ## Make the chart's files that are not committed: CRDs, alerts, dashboard, lists for CEL
	$(PYTHON) -m hack.generate.uncommitted chart

.PHONY: pictures-kernel
pictures-kernel: venv ## Draw memory pressure of a new run on a real kernel, for docs/memory-pressure.md
	@$(PYTHON) -m testbed setup controlplane
	@KERNEL_FACTS=1 PRESSURE_RUN=docs/images/memory-pressure.csv $(PYTHON) -m pytest -q -s -n0 tests/kernel/test_pressure.py -k full_swap
	@$(MAKE) generate

.PHONY: pictures
pictures: setup-cluster ## Draw what kubectl swap explain prints on a real cluster, for README.md (as root)
	E2E_SHOW=build/shown $(PYTHON) -m pytest -q tests/e2e/test_seeing.py -k test_a_pod_that_swaps
	$(PYTHON) -m hack.docs.terminal build/shown/explain.txt docs/images/explain.svg

.PHONY: manifests
manifests: venv ## Make build/manifests from the Helm chart (gets helm if it is not there), and Prometheus' rules in build/prometheus
	$(PYTHON) -m hack.generate.uncommitted manifests

.PHONY: lock
lock: ## Resolve the dependencies again and write locks/ (needs uv)
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --extra kubectl --extra operator --group dev --group docs pyproject.toml -o locks/dev.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header -c locks/dev.txt --extra operator pyproject.toml -o locks/runtime.txt

.PHONY: image
image: venv ## Build the image with docker or buildah into build/image/, and say what makes it large
	@$(PYTHON) -m deploy.build.image

.PHONY: bench-agent
bench-agent: venv ## Measure the agent in the kernel VM beside a loop in C: memory, CPU, system calls, latencies; exit 1 over budget
	@$(PYTHON) -m testbed setup kernel
	$(PYTHON) -m bench.agent

.PHONY: count-walks
count-walks: venv ## Count the modules and calls between an event and its effect, beside their targets
	$(PYTHON) -m hack.walks

.PHONY: bench-storm
bench-storm: venv ## Measure who swaps on a node VM without idle CPU, by who holds the limits (half an hour); STORM_SECONDS=20 is short, STORM="100m 100m,nri" chooses
	@$(PYTHON) -m testbed setup controlplane helm cluster
	$(PYTHON) -m bench.storm --seconds=$(or $(STORM_SECONDS),120) $(STORM)

.PHONY: bench-starts
bench-starts: venv ## Start 200 pods on a node VM while the plugin of the container runtime is killed again and again (long); STARTS=40 is short
	@$(PYTHON) -m testbed setup controlplane helm cluster
	E2E_STARTS=$(or $(STARTS),200) $(PYTHON) -m pytest -q -s -n0 tests/e2e/test_nri_killed.py

.PHONY: bench-memory-qos
bench-memory-qos: venv ## Compare memory QoS of kubelets 1.36 and 1.37 with Swapwarden's on one node VM (half an hour); MODES="1.37 Swapwarden" chooses
	@$(PYTHON) -m testbed setup controlplane helm cluster
	E2E_MEMORY_QOS="$(or $(MODES),nothing Swapwarden 1.37 1.36)" $(PYTHON) -m pytest -q -s -n0 tests/e2e/test_memory_qos_bench.py

.PHONY: bench-idle-pods
bench-idle-pods: venv ## Measure the memory that 200 idle pods leave, with and without reclaim, and their first requests after it (6 minutes); IDLE_PODS=30 is short
	@$(PYTHON) -m testbed setup controlplane helm
	@IDLE_PODS=$${IDLE_PODS:-200} $(PYTHON) -m pytest -q -n0 tests/kernel/test_idle_pods.py

.PHONY: bench-nri
bench-nri: venv ## Measure what the plugin of the container runtime adds to the start of a container, against one in Go, as a ratio; REQUIRED=1 as under nri.mode required
	@$(PYTHON) -m testbed setup nri
	$(PYTHON) -m bench.nri $(if $(REQUIRED),--required)

.PHONY: bench-cli
bench-cli: venv ## Measure how long kubectl swap takes to show its help; exit 1 over budget
	$(PYTHON) -m bench.cli

.PHONY: bench-webhook
bench-webhook: venv ## Measure what the webhook adds to the creation of a pod, against one in Go, as a ratio
	@$(PYTHON) -m testbed setup controlplane helm
	$(PYTHON) -m bench.webhook

.PHONY: bench-scale
bench-scale: venv ## Measure the controller at 100, 1,000 and 5,000 nodes, beside one on kopf (half an hour); SCALE_UP_TO=100 is short
	@$(PYTHON) -m testbed setup controlplane helm
	$(PYTHON) -m bench.scale --up-to=$(or $(SCALE_UP_TO),5000)

.PHONY: bench-pressure
bench-pressure: venv ## Evict from 5,000 nodes under memory pressure in simulated time, and check each eviction (minutes)
	@PRESSURE_BENCH=1 $(PYTHON) -m pytest -q -n0 tests/unit/controller/pressure/test_simulation.py

.PHONY: clean
clean: ## Remove the virtual environment and what tools left in the work tree (the cache outside it stays)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*

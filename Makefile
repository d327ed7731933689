# The two commands are `make run` and `make test`; each sets up what it needs.

CARGO ?= cargo
DATA ?= .fleetcron

.PHONY: run test test-long chaos bench check setup-build setup-test setup-chaos

# A node on jobs.example.toml with the SQLite store. Its data stay in .fleetcron, so the next run goes on with them.
run: setup-build
	$(CARGO) build --release --bins
	exec target/release/fleetcron run --store sqlite:$(DATA)/fleetcron.db --state $(DATA)/node --node here \
		--jobs jobs.example.toml

test: setup-build setup-test
	$(CARGO) test

# The same tests with more rounds, longer storms and wider searches: the better part of an hour.
test-long: setup-build setup-test setup-chaos
	FLEETCRON_TEST_LONG=1 $(CARGO) test
	CHAOS_SECONDS=120 $(CARGO) test --test chaos

# A real fleet in namespaces of its own, ill-treated for CHAOS_SECONDS (half an hour) with the faults of CHAOS_SEED.
chaos: setup-build setup-test setup-chaos
	FLEETCRON_CHAOS_MUST=1 $(CARGO) test --test chaos

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

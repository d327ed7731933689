# The two commands are `make run` and `make test`; each sets up what it needs.

CARGO ?= cargo
DATA ?= .fleetcron

.PHONY: run test test-long bench check setup-build setup-test

# A node on jobs.example.toml with the SQLite store. Its data stay in .fleetcron, so the next run goes on with them.
run: setup-build
	$(CARGO) build --release --bins
	exec target/release/fleetcron run --store sqlite:$(DATA)/fleetcron.db --state $(DATA)/node --node here \
		--jobs jobs.example.toml

test: setup-build setup-test
	$(CARGO) test

# The same tests with more rounds, longer storms and wider searches: the better part of an hour.
test-long: setup-build setup-test
	FLEETCRON_TEST_LONG=1 $(CARGO) test

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

# What a newcomer needs first: `make demo` shows it working, `make test` proves it.
# Both need Go and nothing else. `make e2e` installs what it needs by itself.

BIN     := $(CURDIR)/.bin
REPORTS := $(CURDIR)/.reports
SUM      = $(BIN)/gotestsum --format pkgname --hide-summary skipped --jsonfile $(REPORTS)/$@-$(1).json --

# The tests that interpret the plugin read it from disk, which Go's test cache does
# not see: hence -count=1 below.

# The end-to-end packages that need only Go, and those that need real parts.
LIGHT := ./host/... ./release ./interpreted/... ./docs/... ./k6run/... ./cmd/... ./bench/... ./accuracy/...
REAL  := ./lab/... ./real/... ./twins/... ./orders/... ./bodies/... ./recipes/... ./grpc/... ./observe/... ./logs/... ./command/... ./browser/... ./faults/... ./operations/... ./soak/... ./compose/... ./release/archive

# All modules of ours but the one of Traefik, which takes each library in the version
# that Traefik has, and the folders of npm packages.
MODULES  := . ctl e2e e2e/tools
PACKAGES := k6 e2e/browser

.PHONY: help gatequota demo test e2e race lint vulndb release fuzz bench bench-decision accuracy screenshot soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

gatequota: ## Build the command gatequota, into .bin
	CGO_ENABLED=0 go -C ctl build -trimpath -o $(BIN)/ ./gatequota

demo: ## Run the reference experiment: two gateways, two replicas, one quota (under a minute)
	go -C e2e run ./cmd/demo

test: $(BIN)/gotestsum ## Run all tests that need only Go, compiled and interpreted
	@mkdir -p $(REPORTS)
	$(call SUM,compiled) ./...
	cd ctl && $(call SUM,command) ./...
	cd e2e/tools && $(call SUM,tools) ./...
	cd e2e && $(call SUM,interpreted) -count=1 $(LIGHT)

race: $(BIN)/gotestsum ## Run the same tests with the race detector (needs a C compiler)
	@mkdir -p $(REPORTS)
	$(call SUM,compiled) -race ./...
	cd ctl && $(call SUM,command) -race ./...
	cd e2e && $(call SUM,interpreted) -race -count=1 ./host/... ./interpreted/...

e2e: $(BIN)/gotestsum ## Run everything on real Traefik, real Valkey and Compose (Debian, as root)
	@mkdir -p $(REPORTS)
	scripts/install-e2e.sh
	$(MAKE) race
	cd k6 && npm ci --no-audit --no-fund && npx tsc --noEmit
	cd e2e/browser && npm ci --no-audit --no-fund
	scripts/build-traefik.sh
	cd ctl && GATEQUOTA_TEST_SERVER=valkey-server $(call SUM,command-valkey) -count=1 ./...
	cd ctl && GATEQUOTA_TEST_SERVER=redis-server $(call SUM,command-redis) -count=1 ./...
	cd e2e && $(call SUM,real) -count=1 -p 1 -timeout 60m $(REAL)

lint: $(BIN)/staticcheck $(BIN)/licences $(BIN)/vulnerabilities ## Check the code, what the interpreter cannot run, and the dependencies' licences and vulnerabilities
	@unformatted=$$(git ls-files '*.go' | grep -v '^vendor/' | xargs gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	for module in $(MODULES); do (cd $$module && go vet ./... && $(BIN)/staticcheck ./...) || exit 1; done
	go test ./internal/yaegirules
	$(BIN)/licences $(MODULES) $(PACKAGES)
	$(BIN)/vulnerabilities $(MODULES)

vulndb: ## Know the vulnerabilities of today from now on: moves the version of the data that lint uses
	@mkdir -p $(BIN)
	go -C e2e/tools list -m golang.org/x/vulndb@latest >$(BIN)/vulndb
	mv $(BIN)/vulndb e2e/tools/vulnerabilities/database

release: ## Make a release, and push nothing: make release VERSION=0.2.0
	go -C e2e run ./release -version '$(VERSION)'

fuzz: ## Fuzz all that reads what others write, each for a while: make fuzz FUZZTIME=10m
	@grep -roE '^func Fuzz[A-Za-z]+' --include='*_test.go' --exclude-dir=vendor --exclude-dir=e2e --exclude-dir=ctl . | \
	sed -E 's#^(.*)/[^/]*:func (Fuzz.*)#\1 \2#' | sort | while read -r dir name; do \
		go test $$dir -run '^$$' -fuzz "^$$name$$" -fuzztime $(or $(FUZZTIME),30s) || exit 1; \
	done

bench: ## Compare with Traefik's own limiters, and measure watching, memory and decisions (twenty minutes, as root)
	scripts/install-e2e.sh
	go -C e2e run ./bench

bench-decision: ## Measure what a decision takes without the proxying, and where its time goes (half a minute, as root)
	scripts/install-e2e.sh
	go -C e2e run ./bench -only decision

accuracy: ## Compare each algorithm with an exact log, and measure what it costs (two minutes, as root)
	scripts/install-e2e.sh
	go -C e2e run ./accuracy

screenshot: ## Take docs/status.png anew, of two gateways under load (four minutes, as root)
	scripts/install-e2e.sh
	cd e2e/browser && npm ci --no-audit --no-fund
	go -C e2e run ./browser/screenshot

soak: ## Run two gateways for long, with reloads and random faults: make soak DURATION=10m
	scripts/install-e2e.sh
	go -C e2e run ./soak -duration $(or $(DURATION),10m)

clean: ## Remove what the other targets made here
	rm -rf $(BIN) $(REPORTS) k6/node_modules e2e/browser/node_modules

$(BIN)/%: e2e/tools/go.mod e2e/tools/go.sum $(wildcard e2e/tools/*/*.go) e2e/tools/vulnerabilities/database
	@mkdir -p $(BIN)
	go -C e2e/tools build -o $(BIN)/ gotest.tools/gotestsum honnef.co/go/tools/cmd/staticcheck ./licences ./vulnerabilities
	@touch $(BIN)/*

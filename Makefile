# What one does with a checkout. Each target needs Debian or Ubuntu, root, Rust and Go; packages and programs that are
# missing are installed or built. `make` alone lists the targets.

.PHONY: help demo test test-unit test-service test-cluster images clean-up

help: ## lists the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

demo: ## rolls a RoomCluster under load and leaves target/demo/report.json
	@scripts/demo

test: ## runs all suites
	@scripts/test unit service cluster

test-unit: ## formatting, lints, unit tests, documentation
	@scripts/test unit

test-service: ## the data plane with a real MariaDB and a real Redis
	@scripts/test service

test-cluster: ## operator and data plane on a real cluster; FILTER=words runs some of it
	@scripts/test cluster

images: ## packs the release images into target/images
	@scripts/images

clean-up: ## takes down what killed runs of this checkout have left
	@scripts/clean-up

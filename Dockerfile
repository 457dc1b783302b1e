# The images, for those who have a container engine: docker build --target dataplane . and --target operator .
# (The test cluster packs its own by e2e/cluster/images.)

FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/source/target \
    cargo build --release --locked --package dataplane --package roomcluster-operator --bins \
    && install -D -t /programs target/release/dataplane target/release/roomcluster-operator

FROM debian:bookworm-slim AS base
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 65532 --user-group --no-create-home --shell /usr/sbin/nologin rooms
USER 65532:65532

FROM base AS operator
COPY --from=build /programs/roomcluster-operator /usr/local/bin/
ENTRYPOINT ["/usr/local/bin/roomcluster-operator"]

FROM base AS dataplane
COPY --from=build /programs/dataplane /usr/local/bin/
ENTRYPOINT ["/usr/local/bin/dataplane"]

# Recipes for development. `just` lists them. Checks are steps of scripts/test, which CI runs.

[private]
default:
    @just --list

# Format, clippy, documentation, macOS, licences of dependencies
lint:
    scripts/test lint

# Unit and integration tests
unit:
    scripts/test unit

# lint and unit: run this before a commit
quick:
    scripts/test quick

# Every check that CI runs (half an hour)
all:
    scripts/test

# The official MCP conformance suite
conformance:
    scripts/test conformance

# Real clients and servers of several SDKs
interop:
    scripts/test interop

# Files of deploy/, by the programs that read them
deploy:
    scripts/test deploy

# Release packages: built, installed and used
packages:
    scripts/test packages

# The admin page in a browser
page:
    scripts/test page

# Every reader of bytes, fuzzed for a minute
fuzz:
    scripts/test fuzz

# Randomised tests with far more cases (hours)
long:
    scripts/test long

# The tests whose names match, for example `just only tickets`
only FILTER:
    cargo nextest run --locked -E 'test({{ FILTER }})'

# The same tests, and write their golden files and docs/configuration.md anew
expect FILTER:
    UPDATE_EXPECT=1 cargo nextest run --locked -E 'test({{ FILTER }})'

# Format all code
fmt:
    cargo fmt

# The demonstration, from source
demo:
    cargo run --release -- demo

# CPU, memory and instructions beside other proxies (benches/README.md)
bench *ARGS:
    cargo bench {{ ARGS }}

# Packages for Linux, into a folder
release FOLDER:
    scripts/release {{ FOLDER }}

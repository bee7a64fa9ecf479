#!/usr/bin/env bash
# Builds ../template.wasm.gz and its checksum from the sources here, the crates
# of Cargo.lock (checked against its checksums) and minijinja.patch.
# Needs cargo with the toolchain of rust-toolchain.toml, patch and gzip.
set -euo pipefail
cd "$(dirname "$0")"
build=$PWD/build
rm -rf "$build"
mkdir -p "$build"

# the crates as published, then our patch on top of minijinja
cargo vendor --locked --versioned-dirs "$build/vendor" > /dev/null
crate=$build/vendor/minijinja-3.1.0
patch -s -d "$crate" -p1 < minijinja.patch
package=$(sed -n 's/.*"package":"\([0-9a-f]*\)".*/\1/p' "$crate/.cargo-checksum.json")
printf '{"files":{},"package":"%s"}' "$package" > "$crate/.cargo-checksum.json"

# no path of this machine gets into the module
export RUSTFLAGS="--remap-path-prefix=$PWD=chat --remap-path-prefix=$(rustc --print sysroot)=rust"
export RUSTFLAGS="$RUSTFLAGS -C link-arg=-zstack-size=2097152"
cargo build --locked --offline --release --target wasm32-unknown-unknown \
	--target-dir "$build/target" \
	--config 'source.crates-io.replace-with="vendored"' \
	--config "source.vendored.directory=\"$build/vendor\""

gzip -9 -n -c "$build/target/wasm32-unknown-unknown/release/chat_template.wasm" > ../template.wasm.gz
(cd .. && sha256sum template.wasm.gz > template.wasm.gz.sha256)
cat ../template.wasm.gz.sha256

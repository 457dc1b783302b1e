//! Compiles the .proto files with protox, so that no protoc is needed.

const FILES: [&str; 3] = ["rooms/v1/rooms.proto", "node/v1/node.proto", "peer/v1/peer.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}

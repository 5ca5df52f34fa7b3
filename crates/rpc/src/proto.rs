// SPDX-License-Identifier: Apache-2.0
//! Code generated from `proto/`. The modules are nested as the packages are, since generated code refers to them so.

#![allow(missing_docs, unreachable_pub, clippy::large_enum_variant, clippy::enum_variant_names)]
#![allow(clippy::disallowed_methods)] // a generated server answers a method it does not know with a status of its own

macro_rules! packages {
    ($($role:ident = $package:literal),* $(,)?) => {$(
        pub mod $role {
            pub use v1::*;

            pub mod v1 {
                tonic::include_proto!($package);
            }
        }
    )*};
}

packages! {
    checkpoint = "tributary.checkpoint.v1",
    common = "tributary.common.v1",
    coordinator = "tributary.coordinator.v1",
    flight = "tributary.flight.v1",
    merge = "tributary.merge.v1",
    timeline = "tributary.timeline.v1",
    writer = "tributary.writer.v1",
}

/// What a collector of traces understands.
pub mod otlp {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}

/// Every message and service of `proto/`, encoded for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tributary.bin"));

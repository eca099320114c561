//! What must hold of every reader of bytes, whatever the bytes: a function for each, which panics where
//! it does not.
//!
//! libFuzzer runs them (`fuzz_targets`), and so does the ordinary test suite, on the seeds and on what
//! becomes of them (`tests/it/fuzz/mod.rs`). Each takes what a peer would send, or what lies on a disk, and
//! nothing else, so a seed is a file that can be read.

pub mod anchors;
pub mod config;
pub mod frame;
pub mod headers;
pub mod http1;
pub mod lines;
pub mod post;
pub mod request_state;
pub mod rows;
pub mod splice;
pub mod sse;

/// What a target says of an input.
pub type Target = fn(&[u8]);

/// Every target, by the name of its folder of seeds.
pub const ALL: [(&str, Target); 11] = [
    ("anchors", anchors::target),
    ("config", config::target),
    ("frame", frame::target),
    ("headers", headers::target),
    ("http1", http1::target),
    ("lines", lines::target),
    ("post", post::target),
    ("request_state", request_state::target),
    ("rows", rows::target),
    ("splice", splice::target),
    ("sse", sse::target),
];

/// Ways a network may cut these bytes: not at all, at every byte, and some in between that depend on
/// nothing but the bytes, so that a finding comes back.
fn cuttings(bytes: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let mut seed = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |seed, byte| {
        (seed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let pieces = move |longest: u64| {
        let mut rest = bytes;
        std::iter::from_fn(move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let wanted = usize::try_from(1 + (seed >> 33) % longest).expect("a few bytes");
            let (piece, after) = rest.split_at(wanted.min(rest.len()));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        })
        .collect()
    };
    [vec![bytes], bytes.chunks(1).collect(), pieces(4), pieces(16), pieces(128)].into_iter()
}

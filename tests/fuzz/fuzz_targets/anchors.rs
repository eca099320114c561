#![no_main]

#[expect(dead_code, reason = "a program is for one target, and all are in one module")]
#[path = "../targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::anchors::target(data));

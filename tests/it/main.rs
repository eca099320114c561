//! Everything that is checked from the outside, in one binary.

mod support;
mod upstream;

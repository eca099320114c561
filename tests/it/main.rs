//! Everything that is checked from the outside, in one binary.

mod architecture;
mod stores;
mod tasks;

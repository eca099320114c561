//! The configuration: as written, then as meant.

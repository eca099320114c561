//! Why things are as they are.
